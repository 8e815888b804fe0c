"""All connections of a client: the known addresses, when to dial them, when to close a link."""

from __future__ import annotations

from rostra.client.core.effects import ClientEffect, Dial, HangUp, LinkNumber
from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import BATCH_BYTES_MAX, NodeLink
from rostra.client.core.options import Options, host_and_port
from rostra.errors import InvalidSetting
from rostra.wire.messages import Goodbye, Welcome

ADDRESSES_MAX = 64
"""Beyond it, the address learned longest ago is forgotten; the application's own addresses are kept."""
LINKS_MAX = 64
"""Beyond it, an unused link is closed for a new one; if all are in use, no link is opened."""
UNUSED_MS_MAX = 60_000
"""A link without use for this long is closed, unless it is the last one."""


class NodeLinks:
    """One link per node in use. Without a connected link, the known addresses are dialed in turn."""

    def __init__(self, options: Options, backoff: Backoff, out: list[ClientEffect]) -> None:
        self._options = options
        self._backoff = backoff
        self._out = out
        self.addresses = list(dict.fromkeys(options.addresses))
        self.by_number: dict[LinkNumber, NodeLink] = {}
        self.latest = NodeLink(0, self.addresses[0], 0, out)
        """The link dialed last; it may be closed."""
        self.latest.mark_closed()
        self.batch_bytes_max = BATCH_BYTES_MAX
        """The limit in the latest Welcome; assumed for nodes that are not connected yet."""
        self.attempts = 0
        """Failed attempts since a link was last connected."""
        self.last_reason = "not tried"
        self.finding = ""
        """What is wrong with the cluster, as far as a node has told."""
        self._backoffs: dict[str, tuple[int, int]] = {}
        """By address: failures in a row, and until when it is not dialed."""
        self._turn = -1
        self._seeking: NodeLink | None = None
        self._seek_at_us: int | None = None
        self._number = 0

    # --- known links ---------------------------------------------------------------------------------

    def pick(self, turn: int = 0, exclude: NodeLink | None = None) -> NodeLink | None:
        """A connected link, preferably one that is not suspect; another `turn` picks another one."""
        up = [link for link in self.by_number.values() if link.up and link is not exclude]
        up = [link for link in up if not link.suspect] or up
        return up[turn % len(up)] if up else None

    @property
    def connected(self) -> bool:
        """Whether any link is connected."""
        # Called after every step: a loop costs half as much as a generator.
        for link in self.by_number.values():  # noqa: SIM110
            if link.up:
                return True
        return False

    def silence(self) -> str:
        """Why a request was not answered, as far as it is known."""
        link = self.pick()
        if link is None:
            return f"no connection to {', '.join(self._options.addresses)}: {self.last_reason}"
        return self.finding or f"{link.address} is connected, but has not answered"

    def _at(self, address: str) -> NodeLink | None:
        for link in self.by_number.values():
            if link.address == address:
                return link
        return None

    def add_address(self, address: str) -> None:
        """Remember an address that a node named."""
        if address in self.addresses or not _is_dialable(address):
            return
        if len(self.addresses) >= ADDRESSES_MAX:
            learned = [known for known in self.addresses if known not in self._options.addresses]
            if not learned:
                return
            self.addresses.remove(learned[0])
            self._backoffs.pop(learned[0], None)
        self.addresses.append(address)

    # --- dialing -------------------------------------------------------------------------------------

    def dial_next(self, now_us: int) -> None:
        """Dial the next known address."""
        self._seek_at_us = None
        self._turn = (self._turn + 1) % len(self.addresses)
        address = self.addresses[self._turn]
        self._seeking = self._at(address) or self._dial(now_us, address)

    def link_to(self, now_us: int, address: str) -> NodeLink | None:
        """The link to this address, dialed if needed; None while the address is in its backoff."""
        link = self._at(address)
        if link is None and _is_dialable(address) and now_us >= self.retry_at_us(address) and self._make_space():
            self.add_address(address)
            link = self._dial(now_us, address)
        return link

    def retry_at_us(self, address: str) -> int:
        """When an address that failed may be dialed again."""
        return self._backoffs.get(address, (0, 0))[1]

    def dial_another(self, now_us: int) -> None:
        """Dial a further node, because the connected ones cannot answer."""
        for address in self.addresses:
            if self._at(address) is None and now_us >= self.retry_at_us(address) and self._make_space():
                self._dial(now_us, address)
                return

    def _make_space(self) -> bool:
        if len(self.by_number) < LINKS_MAX:
            return True
        unused = [link for link in self.by_number.values() if link.up and link.unused]
        if len(unused) < 2:
            return False
        self._retire(unused[-1])
        return True

    def _dial(self, now_us: int, address: str) -> NodeLink:
        self._number += 1
        # A share of the time per address, so that one that never answers leaves time for the others.
        due_us = now_us + self._options.connect_timeout_ms * 1000 // len(self.addresses)
        link = self.latest = self.by_number[self._number] = NodeLink(self._number, address, due_us, self._out)
        link.batch_bytes_max = self.batch_bytes_max
        self._out.append(Dial(link.number, address))
        return link

    # --- opening and closing -------------------------------------------------------------------------

    def welcomed(self, now_us: int, link: NodeLink, welcome: Welcome) -> None:
        link.welcomed(now_us, welcome)
        self.batch_bytes_max = welcome.batch_bytes_max
        self.attempts = 0
        self._backoffs.pop(link.address, None)
        self._seeking = None
        self._seek_at_us = None

    def disconnected(self, now_us: int, link: NodeLink, reason: str, *, hang_up: bool) -> None:
        """A link was lost or could not be opened. Without another one, the next attempt follows after a pause, which is
        shorter while some addresses are untried.
        """
        if hang_up:
            self._out.append(HangUp(link.number))
        counts = link.up or link is self._seeking
        del self.by_number[link.number]
        link.mark_closed()
        self.last_reason = reason
        failures = self._backoffs.get(link.address, (0, 0))[0]
        self._backoffs[link.address] = failures + 1, now_us + self._backoff.pause_us(failures)
        if len(self._backoffs) > 2 * ADDRESSES_MAX:
            del self._backoffs[next(iter(self._backoffs))]
        if link is self._seeking:
            self._seeking = None
        if counts and self.pick() is None:
            self.attempts += 1
            if self._seeking is None and self._seek_at_us is None:
                rounds, untried = divmod(self.attempts, len(self.addresses))
                pause_us = 0 if untried and self.attempts > 1 else self._backoff.pause_us(rounds)
                self._seek_at_us = now_us + pause_us

    def _retire(self, link: NodeLink) -> None:
        link.write(Goodbye("not needed any more"))
        self._out.append(HangUp(link.number))
        del self.by_number[link.number]
        link.mark_closed()

    def stop(self) -> None:
        for link in list(self.by_number.values()):
            if link.up:
                link.write(Goodbye("client closes"))
            self._out.append(HangUp(link.number))
            link.mark_closed()
        self.by_number.clear()
        self._seeking = None
        self._seek_at_us = None

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        due = self._seek_at_us
        several = len(self.addresses) > 1
        for link in self.by_number.values():
            due_us = link.due_us
            check_at_us = link.check_at_us
            if several and 0 < check_at_us < due_us and link.has_pending:
                due_us = check_at_us
            if due is None or due_us < due:
                due = due_us
        return due

    def check_suspects(self, now_us: int) -> list[NodeLink]:
        """Check for unanswered requests and return the suspect links. The only known node is never suspect."""
        if len(self.addresses) < 2:
            return []
        return [link for link in self.by_number.values() if 0 < link.check_at_us <= now_us and link.check(now_us)]

    def tick(self, now_us: int) -> list[tuple[NodeLink, str]]:
        """Dial and ping what is due; return the links to close, with the reasons."""
        failed: list[tuple[NodeLink, str]] = []
        for link in list(self.by_number.values()):
            if now_us >= link.due_us:
                reason = link.tick(now_us)
                if reason is not None:
                    failed.append((link, reason))
                elif link.up:
                    self._retire_unused(now_us, link)
        if self._seek_at_us is not None and self._seek_at_us <= now_us:
            self.dial_next(now_us)
        return failed

    def _retire_unused(self, now_us: int, link: NodeLink) -> None:
        if not link.unused:
            link.unused_since_us = None
        elif link.unused_since_us is None:
            link.unused_since_us = now_us
        elif now_us - link.unused_since_us >= UNUSED_MS_MAX * 1000 and self._is_spare(link):
            self._retire(link)

    def _is_spare(self, link: NodeLink) -> bool:
        return any(other.up for other in self.by_number.values() if other is not link)


def _is_dialable(address: str) -> bool:
    """Whether an address named by a node can be dialed. Paths on this machine are not accepted from nodes."""
    try:
        host_and_port(address)
    except InvalidSetting:
        return False
    return True
