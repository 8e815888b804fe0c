"""Examples of `rostra.spark` for docs/api.md. The docstring of each names what it is an example of."""

import json

import rostra.spark


def watching(address: str) -> None:
    """session, metrics_of"""
    spark = rostra.spark.session()
    options = {"nodes": address, "subscribe": "orders", "startingOffsets": "earliest"}
    orders = spark.read.format("rostra").options(**options).load()
    print(orders.count())
    stream = spark.readStream.format("rostra").options(**options).load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    progress = query.lastProgress
    if progress is not None:
        print(rostra.spark.metrics_of(json.loads(progress.json))["records"])
