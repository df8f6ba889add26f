"""Draws the pictures of a checkpoint: attention, position encodings, learning rate, smoothed targets and
training curve.
"""
