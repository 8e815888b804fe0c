"""Simulates one partition with a primary and backups, an unreliable authority, network and disks."""
