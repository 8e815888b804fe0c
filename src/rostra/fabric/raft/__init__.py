"""Consensus: one Raft group for the catalogue, one for every partition."""
