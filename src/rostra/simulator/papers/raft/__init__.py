"""Published results about Raft."""
