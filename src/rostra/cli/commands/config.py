"""`rostra config` and `rostra version`: the settings in force with their sources, and the version."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

import rostra
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, Row, print_note

EXAMPLES = """
rostra config
rostra config listen
rostra -o json config | grep -v '"default"'"""

VERSION_EXAMPLES = """
rostra version"""


def config(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this setting only.")] = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Show every setting, its value and its source.

    A flag wins over a ROSTRA_* variable, that over ./rostra.toml, that over ~/.config/rostra/config.toml, and that
    over the default. In the file, keys are in the sections \\[client], \\[serve] and \\[limits].
    """
    invocation = begin(context, node=node, output=output, config=config)
    rows: list[Row] = [
        {
            "section": resolved.setting.section,
            "name": resolved.setting.name,
            "value": _cell(resolved.value),
            "source": resolved.source,
            "variable": resolved.setting.variable,
            "meaning": resolved.setting.meaning,
        }
        for resolved in invocation.configuration
        if name in (None, resolved.setting.name)
    ]
    if not rows:
        raise typer.BadParameter(f"there is no setting {name!r}; `rostra config` lists them", param_hint="'NAME'")
    invocation.output.rows(rows, columns=("section", "name", "value", "source"))
    for variable in invocation.configuration.unknown_variables():
        print_note(f"note: the variable {variable} is not a setting of Rostra")


def version(context: typer.Context, output: OutputOption = None) -> None:
    """Show the version of Rostra and of the Python it runs on."""
    row: Row = {"rostra": rostra.__version__, "python": platform.python_version(), "system": platform.system()}
    begin(context, output=output).output.rows([row], columns=("rostra", "python", "system"))


def _cell(value: str | int | bool | tuple[str, ...]) -> Cell:
    return list(value) if isinstance(value, tuple) else value
