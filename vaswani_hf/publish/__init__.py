"""Checkpoints for others: the card, the push, and the record that a run keeps of itself."""
