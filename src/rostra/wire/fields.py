"""Types of message fields with their bounds, and the base class of messages."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

TEXT_MAX = 1024

Request = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Chosen by the client, rising per connection; the answer carries it back."""
Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=64)]
Carried = Annotated[dict[Text, int | Text], Meta(max_length=32)]
"""The facts of an error by name."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The typed part of a frame. `payload`: raw batches may follow it."""

    kind: ClassVar[int] = 0
    payload: ClassVar[bool] = False
