"""Simulated networks: between clients and nodes, and between nodes."""
