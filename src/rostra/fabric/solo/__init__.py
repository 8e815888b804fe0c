"""One node alone: it orders everything, and its own fsync commits."""
