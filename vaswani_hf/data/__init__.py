"""Converts files of sentence pairs to batches of token ids."""
