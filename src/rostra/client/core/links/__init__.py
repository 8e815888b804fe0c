"""Connections to nodes: handshake, heartbeats, reconnection."""
