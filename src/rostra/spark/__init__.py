"""Topics in Spark: `format("rostra")` for batch and stream reads, pipelines, and a session that has what both need.

>>> spark = rostra.spark.session()  # doctest: +SKIP
>>> spark.read.format("rostra").option("subscribe", "orders").load()  # doctest: +SKIP

Planning, positions and options are plain Python; `source`, `reader`, `stream`, `session` and `pipelines` know Spark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rostra.spark.environment.session import session

__all__ = ["session"]

if not TYPE_CHECKING:
    # Every worker of Spark imports this package; what a session needs is imported when one is created.
    def __getattr__(name: str) -> object:
        if name != "session":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rostra.spark.environment.session import session

        return session
