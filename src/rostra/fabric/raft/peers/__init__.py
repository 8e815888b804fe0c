"""The other nodes: links, heartbeats, liveness, removal."""
