"""The competitors of scripts/benchmarks/training.py. Each one is a process: `python -m training_peers.NAME
SETTINGS`.
"""
