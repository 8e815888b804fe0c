"""Counters and their Prometheus endpoint."""
