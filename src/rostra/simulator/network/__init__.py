"""Simulated networks: byte streams between clients and nodes, messages between nodes."""
