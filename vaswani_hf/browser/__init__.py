"""Writes HTML pages that show how a model translates. Each page is one file and needs no network."""
