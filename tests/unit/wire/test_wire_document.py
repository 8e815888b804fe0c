"""docs/formats/wire.md says what the code does."""

from __future__ import annotations

from pathlib import Path
from struct import calcsize

from msgspec import inspect

from rostra.wire.fields import Message
from rostra.wire.frames import FRAME, FRAME_BYTES, Violation, encode
from rostra.wire.messages import Ping
from rostra.wire.peers import PeerHello, PeerRefused, PeerWelcome
from tests.unit.wire.streams import ALL_KINDS, CLIENT_KINDS, NODE_KINDS

ANSWER_AT = 3
DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "wire.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    after = DOCUMENT.read_text(encoding="utf-8").split(f"\n| {heading} |", 1)[1]
    rows = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def message_row(kind: type[Message]) -> list[str]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    fields = ", ".join(field.name if field.required else f"[{field.name}]" for field in found.fields)
    direction = {(True, False): "client → node", (False, True): "node → client", (True, True): "both ways"}
    return [
        str(kind.kind),
        kind.__name__,
        direction[kind in CLIENT_KINDS, kind in NODE_KINDS],
        fields,
        "batches" if kind.payload else "",
    ]


def test_the_frame_header_is_as_documented() -> None:
    rows = table("at")
    sizes = [calcsize("<" + form) for form in FRAME.format.lstrip("<")]
    assert [int(row[1]) for row in rows] == sizes
    assert [int(row[0]) for row in rows] == [sum(sizes[:place]) for place in range(len(sizes))]
    assert sum(sizes) == FRAME_BYTES


def test_every_message_is_documented_with_its_fields_and_direction() -> None:
    rows = [[*row[:ANSWER_AT], *row[ANSWER_AT + 1 :]] for row in table("kind")]
    assert rows == [message_row(kind) for kind in sorted(ALL_KINDS, key=lambda kind: kind.kind)]


def test_the_handshake_between_nodes_is_as_documented() -> None:
    rows = [[row[0], row[1], row[3]] for row in table("peer kind")]
    kinds: tuple[type[Message], ...] = (PeerHello, PeerWelcome, PeerRefused)
    assert rows == [[str(kind.kind), kind.__name__, ", ".join(kind.__struct_fields__)] for kind in kinds]


def test_every_request_is_documented_with_its_answer() -> None:
    kinds = {kind.__name__: kind for kind in ALL_KINDS}
    answers = {row[1]: row[ANSWER_AT] for row in table("kind") if row[ANSWER_AT]}
    requests = {kind.__name__ for kind in CLIENT_KINDS if "request" in kind.__struct_fields__} - {"Pong"}
    assert answers.keys() == requests
    for answer in answers.values():
        assert kinds[answer] in NODE_KINDS
        assert "request" in kinds[answer].__struct_fields__


def test_every_reason_for_rejection_is_documented() -> None:
    assert [row[0] for row in table("reason")] == list(Violation)


def test_the_example_frame_is_what_the_code_writes() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").split("```\n")[1]
    assert bytes.fromhex(written.replace("\n", " ")) == encode(Ping(7))
