"""Typer commands whose help shows flags as options without a value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _without_value(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            # Otherwise typer shows the type, as if `--help <bool>` could be written.
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_value(super().get_params(ctx))


class CommandGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_value(super().get_params(ctx))
