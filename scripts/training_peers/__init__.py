"""The competitors of scripts/benchmark_training.py, each a process of its own: `python -m training_peers.NAME SETTINGS`."""
