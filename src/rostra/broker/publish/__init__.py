"""Publishing: offsets, deduplication, exclusive ownership, producers that move between nodes."""
