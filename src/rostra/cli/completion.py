"""Topic names for the shell, asked from the node; a shell that completes must never wait long or see an error."""

from __future__ import annotations

import os

import typer

PATIENCE_MS = 400


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    try:
        return [name for name in _topics(context) if name.startswith(incomplete)]
    except Exception:
        # Whatever is wrong, the command itself will say it; here it would only garble the line being typed.
        return []


def _topics(context: typer.Context) -> list[str]:
    from rostra import blocking
    from rostra.cli.configuration import Configuration, find_files

    given = context.params.get("node") or (context.parent.params.get("node") if context.parent else None)
    configuration = Configuration({"node": given or None}, os.environ, find_files(None, os.environ))
    addresses = configuration.texts("node")
    with blocking.connect(*addresses, connect_timeout_ms=PATIENCE_MS, call_timeout_ms=PATIENCE_MS) as client:
        return [topic.name for topic in client.list_topics()]
