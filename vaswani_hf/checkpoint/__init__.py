"""Finds, loads and checks checkpoints on disk and on the Hub. Loads and saves tokenizers."""
