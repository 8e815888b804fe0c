"""Where a setting comes from: flag, variable, file, default."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from rostra.broker.settings import BrokerSettings
from rostra.cli.commands.serve import node_settings
from rostra.cli.configuration import Configuration, find_files, read_file
from rostra.cli.settings import BY_NAME, SETTINGS
from rostra.errors import InvalidSetting
from rostra.fabric.flood.settings import FloodSettings
from rostra.fabric.registry import fabric_by_name
from rostra.runtime.settings import NodeSettings
from tools import cli_docs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rostra.toml"
    path.write_text('[client]\nacks = "owner"\n[serve]\nlisten = "127.0.0.1:1111"\n[limits]\nheartbeat_ms = "2s"\n')
    return path


def test_a_flag_wins_over_a_variable_over_a_file_over_the_default(file: Path) -> None:
    acks = BY_NAME["acks"]
    files = (read_file(file),)
    variable = {"ROSTRA_ACKS": "none"}
    found = [
        Configuration({"acks": "all"}, variable, files).resolve(acks),
        Configuration({"acks": None}, variable, files).resolve(acks),
        Configuration({}, {}, files).resolve(acks),
        Configuration({}, {}, ()).resolve(acks),
    ]
    assert [(resolved.value, resolved.source) for resolved in found] == [
        ("all", "flag"),
        ("none", "ROSTRA_ACKS"),
        ("owner", str(file)),
        ("all", "default"),
    ]


def test_the_nearer_file_wins_key_by_key(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ".config" / "rostra"
    home.mkdir(parents=True)
    (home / "config.toml").write_text('[client]\nacks = "none"\n[serve]\nfsync = "never"\n')
    monkeypatch.chdir(tmp_path)
    configuration = Configuration({}, {}, find_files(None, {"HOME": str(tmp_path)}))
    assert configuration["acks"] == "owner"
    assert configuration["fsync"] == "never"
    named = Configuration({}, {}, find_files(home / "config.toml", {"HOME": str(tmp_path)}))
    assert named["listen"] == "127.0.0.1:7400"


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ('[serve]\nlissen = "127.0.0.1:1"', "the nearest is 'listen'"),
        ('[server]\nlisten = "127.0.0.1:1"', "the nearest is 'serve'"),
        ("[limits]\nheartbeat = 3", "the nearest is 'heartbeat_ms'"),
        ("[client]\nacks = 3", "none of none, owner, all"),
        ('listen = "127.0.0.1:1"', "no section [listen]"),
        ("[client", "not TOML"),
        ('[serve]\nlisten = "somewhere"', "not HOST:PORT"),
        ('[limits]\nbatch_bytes_max = "8 parsecs"', "not a size"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_nearest_key(tmp_path: Path, written: str, nearest: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(written)
    with pytest.raises(InvalidSetting, match=r".") as refused:
        read_file(path)
    assert nearest in str(refused.value)
    assert "wrong.toml" in str(refused.value)


def test_a_duration_needs_a_unit_in_a_flag_and_not_where_the_name_has_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="--stop-deadline is wrong: '5' has no unit"):
        _ = Configuration({"stop_deadline_ms": "5"}, {}, ())["stop_deadline_ms"]
    assert Configuration({"heartbeat_ms": "500"}, {}, ())["heartbeat_ms"] == 500
    assert Configuration({}, {"ROSTRA_STOP_DEADLINE_MS": "500"}, ())["stop_deadline_ms"] == 500
    path = tmp_path / "rostra.toml"
    path.write_text("[serve]\nstop_deadline_ms = 500\n[limits]\nbatch_bytes_max = 4096\n")
    configured = Configuration({}, {}, (read_file(path),))
    assert (configured["stop_deadline_ms"], configured["batch_bytes_max"]) == (500, 4096)


def test_a_file_in_the_home_directory_that_cannot_be_read_is_ignored_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / ".config" / "rostra"
    home.mkdir(parents=True)
    (home / "config.toml").write_text('[client]\nacks = "none"\n')

    def refuse(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert Configuration({}, {}, find_files(None, {"HOME": str(tmp_path)}))["acks"] == "all"
    assert "config.toml (Permission denied); its settings are ignored" in capsys.readouterr().err
    with pytest.raises(InvalidSetting, match="cannot read"):
        find_files(home / "config.toml", {"HOME": str(tmp_path)})


def test_a_variable_that_sets_nothing_is_noticed() -> None:
    environment = {"ROSTRA_NODES": "127.0.0.1:1", "ROSTRA_NODE": "127.0.0.1:1", "PATH": "/bin"}
    assert Configuration({}, environment, ()).unknown_variables() == ["ROSTRA_NODES"]


def test_addresses_may_be_repeated_or_separated_by_commas() -> None:
    given = Configuration({"node": ["127.0.0.1:1,127.0.0.1:2", "localhost"]}, {}, ())
    assert given["node"] == ("127.0.0.1:1", "127.0.0.1:2", "localhost:7400")


def test_every_limit_of_the_broker_can_be_set() -> None:
    limits = {setting.name for setting in SETTINGS if setting.section == "limits"}
    assert limits == set(BrokerSettings.__struct_fields__)


def test_every_limit_of_the_broker_is_explained() -> None:
    assert set(cli_docs._explained(BrokerSettings)) == set(BrokerSettings.__struct_fields__)


def test_the_defaults_of_the_command_line_are_those_of_the_node() -> None:
    settings = node_settings(Configuration({}, {}, ()))
    assert msgspec.structs.replace(settings, directory="rostra-data") == NodeSettings()


def test_settings_reach_the_node(file: Path) -> None:
    flags = {"metrics": "127.0.0.1:0", "stop_deadline_ms": "3s", "batch_bytes_max": "8MiB"}
    settings = node_settings(Configuration(flags, {"ROSTRA_AUTO_CREATE": "no"}, (read_file(file),)))
    assert (settings.listen, settings.metrics, settings.stop_deadline_ms) == ("127.0.0.1:1111", "127.0.0.1:0", 3_000)
    assert (settings.broker.heartbeat_ms, settings.broker.batch_bytes_max) == (2_000, 8 << 20)
    assert settings.broker.auto_create is False


def test_settings_of_a_fabric_are_those_that_it_declares() -> None:
    flags = {"fabric": "flood", "set": ["both_ways=yes", "resend_ms=1s", "window_bytes=1MiB"]}
    settings = node_settings(Configuration(flags, {}, ()))
    assert settings.fabric_settings == {"both_ways": True, "resend_ms": 1_000, "window_bytes": 1 << 20}
    made = fabric_by_name("flood").with_settings(settings.fabric_settings)
    assert made == FloodSettings(both_ways=True, resend_ms=1_000, window_bytes=1 << 20)


@pytest.mark.parametrize("written", ["both_ways=true", "heartbeat_ms", "heartbeat_ms=soon"])
def test_a_setting_that_the_fabric_does_not_have_is_refused(written: str) -> None:
    with pytest.raises(InvalidSetting, match="heartbeat_ms"):
        node_settings(Configuration({"set": [written]}, {}, ()))
