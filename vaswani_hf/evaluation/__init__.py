"""Scores translations with BLEU, chrF and COMET, and computes the perplexity of references."""
