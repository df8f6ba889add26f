"""Publishes checkpoints: writes the model card and pushes the checkpoint to the Hub."""
