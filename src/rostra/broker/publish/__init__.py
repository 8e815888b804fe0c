"""The way of a published batch: duplicates, offsets, publishers and their ownership."""
