"""Checkpoints on disk and on the Hub: names of files, loading, tokenizers."""
