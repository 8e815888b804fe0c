"""The short demonstrations: each runs a scenario, prints its steps and fails if one does not succeed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from rostra.demo import flood
from rostra.demo.scenario import Scenario, ScenarioFailed, scenario
from rostra.demo.split_vote import show_split_vote

TOPIC = "news"
PARTITION = f"{TOPIC}/0"
METADATA = "_metadata"


class Demonstration(NamedTuple):
    name: str
    shows: str
    run: Callable[[Console], None]


def single(console: Console) -> None:
    with scenario(console, 1) as demo:
        demo.logged("asks for votes", METADATA)
        demo.logged("leads", METADATA)
        demo.create(TOPIC)
        demo.subscribe("mia", TOPIC, 1)
        demo.publish(TOPIC, "hello", 1)
        demo.receives("mia", "hello")


def subscribe(console: Console) -> None:
    with scenario(console, 3) as demo:
        demo.create(TOPIC)
        demo.subscribe("mia", TOPIC, 1)
        demo.publish(TOPIC, "first", 2)
        demo.receives("mia", "first")
        demo.unsubscribe("mia")
        before = demo.pushes()
        demo.publish(TOPIC, "second", 2)
        demo.receives_nothing("mia")
        _none_pushed(demo, before)
        demo.subscribe("noa", TOPIC, 1)
        demo.publish(TOPIC, "third", 2)
        demo.receives("noa", "third")


def _none_pushed(demo: Scenario, before: float) -> None:
    if demo.pushes() != before:
        raise ScenarioFailed("no node sends anything after the unsubscribe")
    demo.say("no node has sent a record to any subscriber since the unsubscribe")


def two_subscribers(console: Console) -> None:
    with scenario(console, 3) as demo:
        demo.create(TOPIC, 3)
        demo.subscribe("mia", TOPIC, 1)
        demo.subscribe("noa", TOPIC, 2)
        demo.publish(TOPIC, "to both", 3)
        demo.receives("mia", "to both")
        demo.receives("noa", "to both")
        demo.unsubscribe("mia")
        demo.publish(TOPIC, "to one", 1)
        demo.receives("noa", "to one")
        demo.receives_nothing("mia")


def failover(console: Console) -> None:
    with scenario(console, 3) as demo:
        demo.create(TOPIC)
        elected = demo.logged("leads", PARTITION)
        first = demo.leader(TOPIC)
        witness = first % 3 + 1
        demo.subscribe("mia", TOPIC, witness)
        demo.publish(TOPIC, "before", witness)
        demo.receives("mia", "before")
        demo.kill(first)
        elected_next = demo.logged("leads", PARTITION, above_term=elected.term, by_other_than=f"node {first}")
        demo.say(f"{elected_next.node} leads {PARTITION}, in term {elected_next.term}")
        demo.publish(TOPIC, "after", witness)
        demo.receives("mia", "after")
        demo.say(f"restarting node {first}")
        demo.cluster[first - 1].start()
        demo.await_members(3)


def membership(console: Console) -> None:
    with scenario(console, 3) as demo:
        demo.await_members(3)
        demo.create(TOPIC)
        newcomer = demo.add_node()
        demo.remove_node(newcomer)
        demo.logged("this node was removed from its cluster", "")
        demo.say(f"stopping node {newcomer}")
        demo.cluster[newcomer - 1].stop()
        demo.await_members(newcomer - 1)
        demo.publish(TOPIC, "three again", 2)


def joined_publish(console: Console) -> None:
    with scenario(console, 3) as demo:
        demo.create(TOPIC)
        demo.subscribe("mia", TOPIC, 1)
        newcomer = demo.add_node()
        demo.publish(TOPIC, "from the newcomer", newcomer)
        demo.receives("mia", "from the newcomer")


DEMONSTRATIONS = (
    Demonstration("raft-single", "one node: it elects itself; subscribe, publish, receive", single),
    Demonstration("raft-subscribe", "subscribe at node 1, publish at node 2, unsubscribe, publish", subscribe),
    Demonstration("raft-two-subscribers", "two subscribers at two nodes, publish at the third", two_subscribers),
    Demonstration("raft-failover", "the leader is killed; another node is elected", failover),
    Demonstration("raft-membership", "a fourth node joins, and is removed again", membership),
    Demonstration("raft-joined-publish", "publish at a node that joined after the subscription", joined_publish),
    Demonstration("flood", flood.SHOWS, flood.flood),
    Demonstration("raft-split-vote", "heartbeats, equal timeouts and split votes, in virtual time", show_split_vote),
)


def run(name: str, console: Console | None = None) -> int:
    """Runs a demonstration; the exit code is 0 only if all of its steps succeeded."""
    console = console or Console(highlight=False)
    chosen = next(one for one in DEMONSTRATIONS if one.name == name)
    try:
        chosen.run(console)
    except ScenarioFailed as error:
        console.print(f"Failed: {error}", style="bold red")
        return 1
    console.print(f"Succeeded: {chosen.shows}.", style="bold green")
    return 0
