"""Producers: batches, sequence numbers, retries, bounds on what is in flight."""
