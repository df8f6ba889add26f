"""Turns files of sentence pairs into batches of token ids."""
