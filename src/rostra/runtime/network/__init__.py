"""Sockets: client and peer listeners, peer links, handshake, addresses."""
