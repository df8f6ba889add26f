"""Publishing checkpoints: the model card, and the push to the Hub."""
