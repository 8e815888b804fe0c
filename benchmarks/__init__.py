"""Compares Rostra with other systems, here called *peers*, on one machine: `python -m benchmarks`."""
