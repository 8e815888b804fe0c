"""The Raft fabric: one Raft group for the metadata, one for every partition."""
