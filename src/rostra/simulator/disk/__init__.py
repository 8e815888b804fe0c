"""A disk in memory with faults."""
