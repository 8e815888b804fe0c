"""Simulated clients, and the applications that use them."""
