"""Subscriptions to topics and patterns: feeds, credit, resumption."""
