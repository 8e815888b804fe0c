"""Topics in Spark: `format("rostra")` for batch and stream reads, pipelines, and a session that has what both need.

>>> spark = rostra.spark.session()  # doctest: +SKIP
>>> spark.read.format("rostra").option("subscribe", "orders").load()  # doctest: +SKIP

`metrics_of` gives the rate and lag of a running query. What is planned is plain Python; sessions, readers and pipelines
know Spark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rostra.spark.environment.session import session
    from rostra.spark.pipelines.progress import metrics_of

__all__ = ["metrics_of", "session"]

if not TYPE_CHECKING:
    # Every worker of Spark imports this package; what a session needs is imported when one is created.
    def __getattr__(name: str) -> object:
        if name == "session":
            from rostra.spark.environment.session import session

            return session
        if name == "metrics_of":
            from rostra.spark.pipelines.progress import metrics_of

            return metrics_of
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
