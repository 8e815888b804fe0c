"""What Rostra promises: one node unless three are named, 100-byte records, fsync before acknowledge unless said."""

from benchmarks.findings import Bound, Target


def times_faster(claim: str, value: float) -> Target:
    return Target(claim=claim, bound=Bound.AT_LEAST, value=value, unit="x")


JETSTREAM = times_faster("durable records/s against JetStream as shipped", 20.0)
REDIS_ALWAYS = times_faster("durable records/s against Redis streams, always", 10.0)
RABBITMQ = times_faster("durable records/s against RabbitMQ streams", 4.0)
KAFKA = times_faster("durable records/s against Kafka as shipped, C client", 1.0)
FAN_OUT = times_faster("deliveries/s to 10 subscribers against NATS core", 10.0)
LATENCY = Target(
    claim="p50 at 1,000/s, blocking client, no fsync, against NATS core",
    bound=Bound.AT_MOST,
    value=0.6,
    unit="x",
)
RELAY = Target(
    claim="1 KiB records, no fsync, of what a relay moves",
    bound=Bound.AT_LEAST,
    value=40.0,
    unit=" %",
)
RELAY_FSYNC = Target(
    claim="1 KiB records, fsync before acknowledge, of what a relay moves",
    bound=Bound.AT_LEAST,
    value=25.0,
    unit=" %",
)
MEMORY = Target(
    claim="growth of the node's memory by 1 GB passing through",
    bound=Bound.BELOW,
    value=64.0,
    unit=" MiB",
)
STALL = Target(
    claim="cost to 99 subscribers of one that stalls",
    bound=Bound.BELOW,
    value=5.0,
    unit=" %",
)
CATCH_UP = Target(
    claim="cost to live traffic of catch-up reads from disk",
    bound=Bound.BELOW,
    value=20.0,
    unit=" %",
)

# Ten thousand topics and ten thousand named subscriptions on one node.
MANY_START = Target(
    claim="10,000 topics and named subscriptions: start after a clean stop",
    bound=Bound.BELOW,
    value=10.0,
    unit=" s",
)
MANY_IDLE = Target(
    claim="10,000 topics and named subscriptions: processor at rest, of a core",
    bound=Bound.BELOW,
    value=5.0,
    unit=" %",
)
MANY_FILES = Target(
    claim="10,000 topics and named subscriptions: descriptors, of those that the system allows",
    bound=Bound.BELOW,
    value=65.0,
    unit=" %",
)
MANY_SPREAD = Target(
    claim="records/s spread over 10,000 topics, of those to one topic, no fsync",
    bound=Bound.AT_LEAST,
    value=80.0,
    unit=" %",
)
MANY_PATTERNS = Target(
    claim="matching a topic among 10,000 unrelated subscriptions, against 10",
    bound=Bound.AT_MOST,
    value=1.5,
    unit="x",
)
MANY = (MANY_START, MANY_IDLE, MANY_FILES, MANY_SPREAD)

# Three nodes on one machine: acknowledged is what a majority has on stable storage.
CLUSTER_JETSTREAM = times_faster("three nodes, durable records/s against JetStream R3 as shipped", 30.0)
CLUSTER_REDIS = times_faster("three nodes, durable records/s against Redis with two replicas, WAIT", 6.0)
RING_REDIS = times_faster("a ring of three, fsynced by all, records/s against Redis with two replicas, WAIT", 6.0)
CLUSTER_LATENCY_P50 = Target(
    claim="three nodes, p50 at 1,000/s, blocking client, no fsync, against JetStream R3",
    bound=Bound.AT_MOST,
    value=0.5,
    unit="x",
)
CLUSTER_LATENCY_P99 = Target(
    claim="three nodes, p99 at 1,000/s, blocking client, no fsync, against JetStream R3",
    bound=Bound.AT_MOST,
    value=0.5,
    unit="x",
)

# Spark on two cores, 10 million records, all columns; in relation to what Spark does with the same in Parquet.
SPARK_BATCH = times_faster("Spark batch read of topics against Parquet files", 0.6)
SPARK_STREAM = times_faster("Spark stream read of topics, availableNow, against a stream of Parquet files", 0.5)
SPARK_ARCHIVE = times_faster("archive against Spark writing Parquet from memory", 0.8)
SPARK_ARCHIVE_DELTA = times_faster("archive into a Delta table against plain Parquet files", 0.9)
# The same jobs, with Spark's own connector to Kafka.
SPARK_BATCH_KAFKA = times_faster("Spark batch read of topics against Kafka's", 1.0)
SPARK_STREAM_KAFKA = times_faster("Spark stream read of topics, availableNow, against Kafka's", 1.0)
SPARK_ARCHIVE_KAFKA = times_faster("archive against that of Kafka's topics", 1.0)
TRACE = Target(
    claim="cost of traces of node, publisher and subscriber",
    bound=Bound.BELOW,
    value=5.0,
    unit=" %",
)
