"""The session of a node with a coordination service."""
