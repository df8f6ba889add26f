"""The toolkits that scripts/benchmarks/training.py compares. The command `python -m training_peers.NAME
SETTINGS` runs one toolkit in its own process.
"""
