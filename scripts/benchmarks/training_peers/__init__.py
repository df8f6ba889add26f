"""The competitors of scripts/benchmarks/training.py. Each competitor is a process: `python -m
training_peers.NAME SETTINGS`.
"""
