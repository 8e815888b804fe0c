"""Chord rings on virtual time: an event loop for up to 100,000 nodes, and seeds with faults and checkers."""
