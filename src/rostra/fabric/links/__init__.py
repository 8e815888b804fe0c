"""Peers of a node: links, boot numbers, heartbeats combined per pair of nodes, liveness, and deadlines.

The lowest of the shared cores: it knows partitions by id only, and nothing of what is replicated.
"""
