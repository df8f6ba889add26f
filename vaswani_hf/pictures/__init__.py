"""Draws the pictures of a checkpoint: attention, position encodings, learning rate, targets and training curve."""
