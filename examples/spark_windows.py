"""A cluster, some records, a batch read and a windowed stream, in ten lines."""

import rostra.testing
from rostra.spark import session

small = {"spark.sql.shuffle.partitions": "4"}
with rostra.testing.cluster(3) as cluster, cluster[0].client() as client, session(conf=small) as spark:
    with client.producer("clicks") as producer:
        for n in range(10_000):
            producer.send(b"click", key=b"user-%d" % (n % 100))
    topics = {"nodes": cluster[0].address, "subscribe": "clicks", "startingOffsets": "earliest"}
    print(spark.read.format("rostra").options(**topics).load().groupBy("topic").count().collect())
    stream = spark.readStream.format("rostra").options(**topics).load().selectExpr("window(timestamp, '1 second')")
    counts = stream.groupBy("window").count().writeStream.outputMode("complete").format("console")
    counts.trigger(availableNow=True).start().awaitTermination()
