"""Scores of translations: BLEU, chrF, perplexity."""
