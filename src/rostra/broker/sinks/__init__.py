"""Exactly-once sinks: staged batches in their target partitions, decisions in `_sinks`, and how these are applied."""
