"""By this name Spark finds `format("rostra")` without registration."""

from rostra.spark.source import RostraSource as DefaultSource

__all__ = ["DefaultSource"]
