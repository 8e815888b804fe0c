"""Resolves settings: flag, then ROSTRA_* variable, then TOML file, then default; remembers the source of each."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec

from rostra.cli.output import print_note
from rostra.cli.settings import BY_NAME, PREFIX, SETTINGS, Setting, Value
from rostra.errors import InvalidSetting

FILE_VARIABLE = "ROSTRA_CONFIG"
SECTIONS = ("client", "serve", "limits")


class Resolved(msgspec.Struct, frozen=True):
    setting: Setting
    value: Value
    source: str
    """Such as `flag`, `ROSTRA_NODE`, `./rostra.toml` or `default`."""


class ConfigurationFile(msgspec.Struct, frozen=True):
    shown_as: str
    values: dict[str, Value]


class Configuration:
    """The settings in force for one command.

    >>> Configuration({"acks": "owner"}, {}, ())["acks"]
    'owner'
    """

    def __init__(
        self, flags: Mapping[str, object], environment: Mapping[str, str], files: tuple[ConfigurationFile, ...]
    ) -> None:
        self._flags = {name: given for name, given in flags.items() if given is not None}
        self._environment = environment
        self._files = files

    def __getitem__(self, name: str) -> Value:
        return self.resolve(BY_NAME[name]).value

    def text(self, name: str) -> str:
        return str(self[name])

    def number(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), f"{name} is no number"
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self[name]
        assert isinstance(value, tuple), f"{name} is no list"
        return value

    def resolve(self, setting: Setting) -> Resolved:
        if setting.name in self._flags:
            return Resolved(setting, _parsed(setting.parse_flag, self._flags[setting.name], setting.option), "flag")
        if setting.variable in self._environment:
            written = self._environment[setting.variable]
            return Resolved(setting, _parsed(setting.parse, written, setting.variable), setting.variable)
        for file in self._files:
            if setting.name in file.values:
                return Resolved(setting, file.values[setting.name], file.shown_as)
        return Resolved(setting, setting.default, "default")

    def __iter__(self) -> Iterator[Resolved]:
        return (self.resolve(setting) for setting in SETTINGS)

    def unknown_variables(self) -> list[str]:
        """Variables with our prefix that set nothing: not an error, since other programs may use the prefix, too."""
        known = {FILE_VARIABLE, *(setting.variable for setting in SETTINGS)}
        return sorted(name for name in self._environment if name.startswith(PREFIX) and name not in known)


def find_files(chosen: Path | None, environment: Mapping[str, str]) -> tuple[ConfigurationFile, ...]:
    """The named file alone; without one, ./rostra.toml and then the file in the home directory, if they exist."""
    if chosen is None and environment.get(FILE_VARIABLE):
        chosen = Path(environment[FILE_VARIABLE])
    if chosen is not None:
        if not chosen.is_file():
            raise InvalidSetting("--config", f"there is no file {chosen}")
        try:
            return (read_file(chosen),)
        except OSError as error:
            raise InvalidSetting("--config", f"cannot read {chosen}: {error.strerror}") from None
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    default_paths = (Path("rostra.toml"), Path(base) / "rostra" / "config.toml")
    return tuple(file for path in default_paths if (file := _read_default(path)) is not None)


def _read_default(path: Path) -> ConfigurationFile | None:
    """A default file that exists but cannot be read is left out: it must not stop every command."""
    try:
        return read_file(path) if path.is_file() else None
    except OSError as error:
        print_note(f"note: cannot read {path} ({error.strerror}); its settings are ignored")
        return None


def read_file(path: Path) -> ConfigurationFile:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(str(path), f"it is not TOML: {error}") from None
    values: dict[str, Value] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            raise InvalidSetting(str(path), f"there is no section [{section}]; {_nearest(section, SECTIONS)}")
        if not isinstance(table, dict):
            raise InvalidSetting(str(path), f"{section} is a section: write [{section}] above its keys")
        for key, given in table.items():
            names = [setting.name for setting in SETTINGS if setting.section == section]
            if key not in names:
                raise InvalidSetting(str(path), f"[{section}] has no key {key!r}; {_nearest(key, names)}")
            values[key] = _parsed(BY_NAME[key].parse, given, f"{key} in {path}")
    return ConfigurationFile(str(path), values)


def _nearest(written: str, known: tuple[str, ...] | list[str]) -> str:
    near = get_close_matches(written, known, n=1, cutoff=0.0)
    return f"the nearest is {near[0]!r}" if near else f"there are {', '.join(known)}"


def _parsed(parse: Callable[[object], Value], given: object, where: str) -> Value:
    try:
        return parse(given)
    except ValueError as error:
        raise InvalidSetting(where, str(error)) from None
