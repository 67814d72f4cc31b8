"""Options of the tcp backend: each mistake is named, with what is known or allowed."""

from __future__ import annotations

import pytest

from kvferry.errors import ConfigError
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.options import join_address, parse_options, split_address


def test_defaults_stay_on_this_machine() -> None:
    options = parse_options({})
    assert options.listen_host == "127.0.0.1"
    assert options.connections == 0


@pytest.mark.parametrize(
    ("cores", "connections"), [(1, 2), (2, 2), (4, 2), (8, 4), (16, 8), (192, 8)]
)
def test_connections_follow_from_the_cores_unless_they_are_set(
    monkeypatch: pytest.MonkeyPatch, cores: int, connections: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    assert parse_options({}).connections_per_read == connections
    assert parse_options({"connections": 3}).connections_per_read == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conections": 2}, "conections.*known.*connections"),
        ({"connections": -1}, "connections -1"),
        ({"connections": 17}, "connections 17.*16"),
        ({"connections": "two"}, "connections"),
        ({"listen_port": 70000}, "listen_port 70000"),
        ({"listen_host": "0.0.0.0"}, "advertise"),
        ({"listen_host": "::"}, "advertise"),
        ({"listen_host": "localhost"}, "listen_host.*IP"),
        ({"advertise": "10.0.0.7"}, "10.0.0.7"),
        ({"advertise": "engine-0:7100"}, "engine-0:7100"),
        ({"advertise": "10.0.0.7:0"}, "port"),
        ({"chunk_blocks": -1}, "chunk_blocks"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"reads": 0}, "reads 0"),
        ({"serve_connections": 0}, "serve_connections 0"),
        ({"serve_transfers": 5000}, "serve_transfers 5000.*4096"),
        ({"serve_bytes": 0}, "serve_bytes 0"),
        ({"timeout_s": float("nan")}, "timeout_s"),
    ],
)
def test_a_mistake_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TcpBackend(options)


def test_every_interface_needs_an_advertised_address() -> None:
    options = parse_options({"listen_host": "0.0.0.0", "advertise": "10.0.0.7:7100"})
    assert split_address(options.advertise) == ("10.0.0.7", 7100)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:65535"])
def test_addresses_survive_the_round_trip(address: str) -> None:
    assert join_address(*split_address(address)) == address
