"""Rostra: one publish/subscribe system, five fabrics, a data pipeline on Spark."""

__version__ = "0.1.0"
