"""Finds, loads and checks checkpoints on disk and on the Hub, and loads and saves tokenizers."""
