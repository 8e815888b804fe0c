"""One Raft group over one partition: election, replication, membership, read index."""
