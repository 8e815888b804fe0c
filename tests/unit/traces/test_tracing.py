"""What clients and nodes note of themselves, on a real cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import rostra
import rostra.testing
from rostra import blocking


def rows(place: Path, event: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(place).to_pylist()
    return sorted((row for row in found if row["event"] == event), key=lambda row: (row["who"], row["number"]))


def test_publishers_subscribers_and_nodes_tell_of_the_same_batches(tmp_path: Path) -> None:
    place = tmp_path / "traces"
    with rostra.testing.cluster(3, fsync="never", trace=place) as cluster:
        with blocking.connect(cluster[0].address, trace=str(place)) as client:
            client.create_topic("orders", partitions=2)
            with client.subscribe("orders", start="earliest") as subscription:
                with client.producer("orders", batch_bytes=500) as producer:
                    for n in range(300):
                        producer.send(b"%d" % n, key=b"%d" % n)
                got = 0
                while got < 300:
                    batch = subscription.poll(30)
                    assert batch is not None
                    got += len(batch)

        async def once_more() -> None:
            async with rostra.connect(cluster[1].address, trace=str(place)) as client:
                await client.publish("orders", b"last")
                async with client.subscribe("orders", start=rostra.Last(1), partition=0) as records:
                    assert (await anext(aiter(records))).topic == "orders"

        asyncio.run(once_more())
    published, delivered = rows(place, "published"), rows(place, "delivered")
    assert sum(row["records"] for row in published) == 301
    assert [row["topic"] for row in rows(place, "created")] == ["orders"]
    begun = rows(place, "subscribed")
    assert len(begun) == 3
    first = begun[0]["who"] if sum(row["who"] == begun[0]["who"] for row in begun) == 2 else begun[-1]["who"]
    own = [row for row in delivered if row["who"] == first]
    assert {(row["partition"], row["first"], row["end"]) for row in own} <= {
        (row["partition"], row["first"], row["end"]) for row in published
    }
    assert sum(row["records"] for row in own) == 300
    assert all(row["time_us"] >= row["born_us"] > 0 for row in own)
    # The owner has it first; one more makes a majority, and the third may be late for the end.
    stored = rows(place, "stored")
    addresses = {node.address for node in cluster}
    assert {row["name"] for row in stored} <= addresses and {row["name"] for row in own} == {""}
    assert sum(row["records"] for row in stored if row["hops"] == 0) == 301
    assert 301 <= sum(row["records"] for row in stored if row["hops"] == 1) <= 602
    assert sum(row["bytes"] for row in rows(place, "served")) >= sum(row["bytes"] for row in own)
    ended = {(row["partition"], row["end"]) for row in rows(place, "unsubscribed") if row["who"] == first}
    assert ended == {(p, max(row["end"] for row in own if row["partition"] == p)) for p in (0, 1)}
