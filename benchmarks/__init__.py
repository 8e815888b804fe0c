"""Rostra and its peers, driven side by side on one machine: `python -m benchmarks`."""
