"""Shell completion of topic names, which a node is asked for; it never waits long and never prints an error."""

from __future__ import annotations

import os

import typer

TIMEOUT_MS = 400


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    try:
        return [name for name in _topics(context) if name.startswith(incomplete)]
    except Exception:
        # The command itself reports the error; here it would garble the line being typed.
        return []


def _topics(context: typer.Context) -> list[str]:
    from rostra import blocking
    from rostra.cli.configuration import Configuration, find_files

    given = context.params.get("node") or (context.parent.params.get("node") if context.parent else None)
    configuration = Configuration({"node": given or None}, os.environ, find_files(None, os.environ))
    addresses = configuration.texts("node")
    with blocking.connect(*addresses, connect_timeout_ms=TIMEOUT_MS, call_timeout_ms=TIMEOUT_MS) as client:
        return [topic.name for topic in client.list_topics()]
