"""Producers: batches, sequence numbers, retries, limits on what is in flight."""
