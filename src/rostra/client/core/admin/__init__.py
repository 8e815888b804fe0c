"""Requests about topics, consumer groups and the cluster."""
