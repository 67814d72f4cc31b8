from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvferry.errors import ConfigError
from kvferry.node.peers.keys import default_key_path, derive, load_key


def _env(home: Path) -> dict[str, str]:
    return {"HOME": str(home)}


def _write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_first_use_creates_a_private_key_and_later_uses_find_it(tmp_path: Path) -> None:
    key = load_key(None, env=_env(tmp_path))
    path = tmp_path / ".config" / "kvferry" / "cluster.key"
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_key(None, env=_env(tmp_path)) == key
    assert [entry.name for entry in path.parent.iterdir()] == ["cluster.key"]


def test_xdg_config_home_is_honoured(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    load_key(None, env=env)
    assert default_key_path(env) == tmp_path / "xdg" / "kvferry" / "cluster.key"
    assert default_key_path(env).exists()
    assert not (tmp_path / ".config").exists()


def test_starters_at_the_same_moment_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_key(None, env=_env(tmp_path)), range(32)))
    assert len(keys) == 1


def test_option_wins_over_environment_which_wins_over_default(tmp_path: Path) -> None:
    named = _write(tmp_path / "named", "11" * 32 + "\n")
    env = {**_env(tmp_path), "KVFERRY_KEY_FILE": str(named)}
    assert load_key(None, env=env) == b"\x11" * 32
    assert load_key("hex:" + "22" * 32, env=env) == b"\x22" * 32
    other = _write(tmp_path / "other", "33" * 32)
    assert load_key(f"file:{other}", env=env) == b"\x33" * 32
    assert not default_key_path(env).exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = _write(tmp_path / "shared.key", "11" * 32, mode)
    with pytest.raises(ConfigError, match=rf"shared\.key.*{mode:04o}.*chmod 600"):
        load_key(f"file:{path}", env={})


@pytest.mark.parametrize("text", ["", "11" * 31, "11" * 33, "zz" * 32, "\x80", "11" * 16 + "\0"])
def test_a_file_without_a_key_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path / "odd.key", text)
    with pytest.raises(ConfigError, match=r"odd\.key must hold 64 hex digits"):
        load_key(f"file:{path}", env={})


@pytest.mark.parametrize("option", ["", "file:", "hex", "hex:12", "raw:abc", "/etc/key"])
def test_a_malformed_option_is_refused(option: str) -> None:
    with pytest.raises(ConfigError):
        load_key(option, env={})


def test_the_refusal_of_an_option_does_not_show_the_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        load_key("hex:" + "ab" * 31, env={})
    assert "abab" not in str(refused.value)


def test_a_missing_named_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.key cannot be read.*openssl rand"):
        load_key(None, env={"KVFERRY_KEY_FILE": str(tmp_path / "none.key")})
    assert not (tmp_path / "none.key").exists()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_key(f"file:{tmp_path}", env={})


def test_an_impossible_default_place_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / ".config").write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match="KVFERRY_KEY_FILE"):
        load_key(None, env=_env(tmp_path))


def test_derived_keys_differ_by_purpose_and_by_where_parts_end() -> None:
    key = os.urandom(32)
    assert derive(key, "a", "b") == derive(key, "a", "b")
    others = [
        derive(key, "a", "b"),
        derive(key, "ab"),
        derive(key, "a", "b", ""),
        derive(key, "", "ab"),
        derive(key, "b", "a"),
        derive(os.urandom(32), "a", "b"),
    ]
    assert len(set(others)) == len(others)
