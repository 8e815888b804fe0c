"""The client for blocking code: sockets without an event loop."""
