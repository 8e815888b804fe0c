"""The demonstrations of single things: each a short course that is shown as it happens and must come true."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from rostra.demo import flood
from rostra.demo.scenario import Scenario, ScenarioFailed, scenario
from rostra.demo.split_vote import show_split_vote

TOPIC = "news"
PLACE = f"{TOPIC}/0"
CATALOGUE = "_catalogue"


class Demonstration(NamedTuple):
    name: str
    shows: str
    play: Callable[[Console], None]


def single(console: Console) -> None:
    with scenario(console, 1) as play:
        play.logged("asks for votes", CATALOGUE)
        play.logged("leads", CATALOGUE)
        play.create(TOPIC)
        play.subscribe("mia", TOPIC, 1)
        play.publish(TOPIC, "hello", 1)
        play.receives("mia", "hello")


def subscribe(console: Console) -> None:
    with scenario(console, 3) as play:
        play.create(TOPIC)
        play.subscribe("mia", TOPIC, 1)
        play.publish(TOPIC, "first", 2)
        play.receives("mia", "first")
        play.unsubscribe("mia")
        before = play.pushes()
        play.publish(TOPIC, "second", 2)
        play.receives_nothing("mia")
        _none_pushed(play, before)
        play.subscribe("noa", TOPIC, 1)
        play.publish(TOPIC, "third", 2)
        play.receives("noa", "third")


def _none_pushed(play: Scenario, before: float) -> None:
    if play.pushes() != before:
        raise ScenarioFailed("no node sends anything after the unsubscribe")
    play.say("no node has sent a record to anybody since the unsubscribe")


def two_subscribers(console: Console) -> None:
    with scenario(console, 3) as play:
        play.create(TOPIC, 3)
        play.subscribe("mia", TOPIC, 1)
        play.subscribe("noa", TOPIC, 2)
        play.publish(TOPIC, "to both", 3)
        play.receives("mia", "to both")
        play.receives("noa", "to both")
        play.unsubscribe("mia")
        play.publish(TOPIC, "to one", 1)
        play.receives("noa", "to one")
        play.receives_nothing("mia")


def failover(console: Console) -> None:
    with scenario(console, 3) as play:
        play.create(TOPIC)
        elected = play.logged("leads", PLACE)
        first = play.leader(TOPIC)
        witness = first % 3 + 1
        play.subscribe("mia", TOPIC, witness)
        play.publish(TOPIC, "before", witness)
        play.receives("mia", "before")
        play.kill(first)
        said = play.logged("leads", PLACE, above_term=elected.term, by_other_than=f"node {first}")
        play.say(f"{said.node} says that it leads {PLACE} now, in term {said.term}")
        play.publish(TOPIC, "after", witness)
        play.receives("mia", "after")
        play.say(f"node {first} is started again")
        play.cluster[first - 1].start()
        play.await_members(3)


def membership(console: Console) -> None:
    with scenario(console, 3) as play:
        play.await_members(3)
        play.create(TOPIC)
        newcomer = play.join()
        play.leave(newcomer)
        play.logged("this node was removed from its cluster", "")
        play.say(f"node {newcomer} is stopped")
        play.cluster[newcomer - 1].stop()
        play.await_members(newcomer - 1)
        play.publish(TOPIC, "three again", 2)


def joined_publish(console: Console) -> None:
    with scenario(console, 3) as play:
        play.create(TOPIC)
        play.subscribe("mia", TOPIC, 1)
        newcomer = play.join()
        play.publish(TOPIC, "from the newcomer", newcomer)
        play.receives("mia", "from the newcomer")


DEMONSTRATIONS = (
    Demonstration("raft-single", "one node: it elects itself; subscribe, publish, receive", single),
    Demonstration("raft-subscribe", "subscribe at node 1, publish at node 2, unsubscribe, publish", subscribe),
    Demonstration("raft-two-subscribers", "two subscribers at two nodes, publish at the third", two_subscribers),
    Demonstration("raft-failover", "the leader is killed; a new one is elected and says so", failover),
    Demonstration("raft-membership", "a fourth node joins, and is removed again", membership),
    Demonstration("raft-joined-publish", "publish at a node that joined after the subscription", joined_publish),
    Demonstration("flood", flood.SHOWS, flood.flood),
    Demonstration("raft-split-vote", "heartbeats, equal timeouts and split votes, in virtual time", show_split_vote),
)


def run(name: str, console: Console | None = None) -> int:
    """The exit code: 0 only if all that it shows was true."""
    console = console or Console(highlight=False)
    chosen = next(one for one in DEMONSTRATIONS if one.name == name)
    try:
        chosen.play(console)
    except ScenarioFailed as error:
        console.print(f"This did not come true: {error}", style="bold red")
        return 1
    console.print(f"Shown: {chosen.shows}.", style="bold green")
    return 0
