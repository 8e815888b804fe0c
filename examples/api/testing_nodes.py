"""Examples of `rostra.testing` for docs/api.md. The docstring of each names what it is an example of."""

import rostra.testing
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.metrics import Metrics
from rostra.testing.process import ProcessNode


def one_node() -> None:
    """node, EmbeddedNode, Metrics"""
    with rostra.testing.node(fsync="never") as node:
        started: EmbeddedNode = node
        with started.client() as client:
            client.publish("orders", b"milk")
            started.kill()
            started.restart()
            client.publish("orders", b"bread")
        metrics: Metrics = started.metrics()
        print(metrics.value("rostra_topics"))


def one_process() -> None:
    """process_node, ProcessNode"""
    with rostra.testing.process_node(fsync="never") as node:
        started: ProcessNode = node
        with started.client() as client:
            client.publish("orders", b"milk")
            started.sigkill()
            started.start()
            client.publish("orders", b"bread")
        print([line.event for line in started.log_lines()])


def three_nodes() -> None:
    """cluster, Cluster"""
    with rostra.testing.cluster(3, fsync="never") as cluster:
        started: Cluster[EmbeddedNode] = cluster
        with started[0].client() as client:
            client.publish("orders", b"milk")
        started.owner("orders").kill()
        with started.owner("orders").client() as client:
            client.publish("orders", b"bread")


def three_processes() -> None:
    """process_cluster"""
    with rostra.testing.process_cluster(3, fsync="never") as cluster:
        with cluster[0].client() as client:
            client.publish("orders", b"milk")
        cluster[2].sigkill()
        with cluster[1].client() as client:
            client.publish("orders", b"bread")
