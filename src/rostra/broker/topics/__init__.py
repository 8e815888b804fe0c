"""Topics: requests about them, where partitions are served, pattern watches."""
