"""The competitors of scripts/benchmarks/training.py, each a process of its own: `python -m training_peers.NAME SETTINGS`."""
