"""By this name Spark finds `format("rostra")` without registration."""

from rostra.spark.source.data_source import RostraSource as DefaultSource

__all__ = ["DefaultSource"]
