"""Writes docs/cli.md from the commands themselves: `python -m tools.cli_docs`. A test checks that it is up to date."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from rostra.broker.settings import BrokerSettings
from rostra.cli.app import app
from rostra.cli.exit_codes import MEANINGS
from rostra.cli.settings import SETTINGS, Setting, Value
from rostra.fabric.registry import FABRICS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEAD = """# The command line

This page is generated from the commands by `python -m tools.cli_docs`.

`rostra --install-completion` installs shell completion of commands, options and topic names.

## Conventions

- Data goes to stdout; logs, notes, progress and errors go to stderr.
- On a terminal data is printed as tables; on a pipe, or with `-o json`, as NDJSON: one JSON object per line.
- `-n/--node`, `-o/--output` and `--config` may be given before or after the name of a command.
- An error is printed as `error:` with the fact and, where there is one, `hint:` with the next step, not as a traceback.
- Times are written as `500ms`, `30s`, `12h`, `7d`; sizes as `500B`, `64MiB`, `2GB`; a flag without a unit is refused.
"""


def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command with its full name; a group comes before its commands."""
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


def page() -> str:
    parts = [HEAD, _exit_codes(), _settings()]
    root = typer.main.get_command(app)
    parts += [_command(path, command) for path, command in commands(root, "rostra")]
    return "\n".join(parts).rstrip() + "\n"


def _exit_codes() -> str:
    rows = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    return f"## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}\n"


def _settings() -> str:
    text = """## Settings

A flag wins over a variable, a variable over `./rostra.toml`, that over `~/.config/rostra/config.toml`, and that over
the default. `--config FILE`, or the variable `ROSTRA_CONFIG`, names a file to read instead of those two. An
unknown key is an error that names the nearest known one. `rostra config` shows every value and its source.

```toml
[client]
node = ["127.0.0.1:7400", "127.0.0.1:7401"]

[serve]
data = "/var/lib/rostra"
metrics = "127.0.0.1:9400"

[limits]
batch_bytes_max = "8MiB"
```

| section | key | variable | default | meaning |
|---|---|---|---|---|
"""
    return text + "\n".join(_setting(setting) for setting in SETTINGS) + "\n" + _fabric_settings()


def _fabric_settings() -> str:
    lines = ["", 'A fabric has settings of its own: `--set NAME=VALUE`, or `set = ["NAME=VALUE"]` in `[serve]`.', ""]
    lines += ["| fabric | name | default | meaning |", "|---|---|---|---|"]
    for kind in FABRICS.values():
        meanings = _explained(kind.settings)
        for field in msgspec.structs.fields(kind.settings):
            default, meaning = _shown(field.default), meanings.get(field.name, "")
            lines.append(f"| {kind.name} | `{field.name}` | `{default}` | {meaning} |")
    return "\n".join(lines) + "\n"


def _setting(setting: Setting) -> str:
    default = _shown(setting.default)
    meaning = _explained(BrokerSettings).get(setting.name, "") if setting.section == "limits" else setting.meaning
    return f"| {setting.section} | `{setting.name}` | `{setting.variable}` | `{default}` | {meaning} |"


@cache
def _explained(settings: type) -> dict[str, str]:
    """The text below each field where it is declared, so that it is written once."""
    found: dict[str, str] = {}
    declared = ast.parse(inspect.getsource(settings)).body[0]
    assert isinstance(declared, ast.ClassDef)
    for bound, text in pairwise(declared.body):
        match bound, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split())
    return found


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _command(path: str, command: Any) -> str:
    lines = [f"## {path}", "", _plain(inspect.cleandoc(command.help or "")), ""]
    options = [row for parameter in command.params if (row := _parameter(parameter))]
    if options:
        lines += ["| | |", "|---|---|", *options, ""]
    if command.epilog:
        examples = command.epilog.partition("\n\n")[0].removeprefix("Examples:\n")
        lines += ["```console", examples, "```", ""]
    return "\n".join(lines)


def _parameter(parameter: Any) -> str:
    if parameter.name in ("help", "install_completion", "show_completion"):
        return ""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        written = f"`{metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        value = "" if parameter.is_flag else f" {_in_cell(metavar)}"
        written = f"{names}{value}"
    default = parameter.show_default if isinstance(parameter.show_default, str) else _given(parameter)
    default_note = f" Default: {default}." if default else ""
    return f"| {written} | {_in_cell(parameter.help or '')}{default_note} |"


def _given(parameter: Any) -> str:
    default = parameter.default
    return "" if default is None or isinstance(default, bool) or callable(default) else str(default)


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Brackets are escaped in help for the terminal's sake."""
    return text.replace("\\[", "[")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
