"""Two ends in this process: what they check, whom they serve, and what they leave behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from tests.leftovers import nothing_stays_open

from kvferry.errors import BackendError, ConfigError
from kvferry.ports.backend import ReadRequest, Verify
from kvferry_backends.bench import raw
from kvferry_backends.bench.end import End
from kvferry_backends.bench.messages import Measure, Open, Opened
from kvferry_backends.bench.pools import HostPool, Shape
from kvferry_backends.bench.run import raw_kind
from kvferry_backends.bench.settings import Settings, parse_size, parse_sizes
from kvferry_backends.layout import HostPool as BlockViews
from kvferry_backends.options import parse_assigned
from kvferry_backends.tcp.backend import TcpBackend

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SETTINGS = Settings(backends=("tcp",), pool_bytes=64 * 4096, seconds=0.01)


class Pair:
    def __init__(self, source_key: bytes = KEY, settings: Settings = SETTINGS) -> None:
        self.source, self.target = End(source_key), End(KEY)
        self.given = self.source.open(Open(settings=settings, block_bytes=4096, seed="a"))
        self.target.open(Open(settings=settings, block_bytes=4096, seed="b"))

    def measure(self, **changes: object) -> Measure:
        asked = Measure(
            backend="tcp",
            peer=self.given.backends["tcp"].description,
            peer_seed="a",
            pattern="scattered",
            verify=Verify.OFF,
            seconds=0.01,
            raw="stream",
            raw_address=self.given.raw_address,
            raw_token=self.given.raw_token,
            peer_device=0,
        )
        return msgspec.structs.replace(asked, **changes)

    def close(self) -> None:
        self.target.shut()
        self.source.shut()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with nothing_stays_open():
        made = Pair()
        yield made
        made.close()


@pytest.mark.parametrize("pattern", ["scattered", "contiguous"])
@pytest.mark.parametrize("kind", ["stream", "memcpy"])
def test_a_row_has_a_rate_a_limit_and_a_latency(pair: Pair, pattern: str, kind: str) -> None:
    found = pair.target.measure(pair.measure(pattern=pattern, raw=kind))
    assert found.gb_per_s > 0
    assert found.raw_gb_per_s > 0
    assert 0 < found.p50_ms <= found.p99_ms
    assert (found.bytes_per_read, found.checked_blocks) == (16 * 4096, 16)
    assert found.reads >= 3


def test_other_bytes_than_the_sources_are_found(pair: Pair) -> None:
    """Negative control: the same read, compared with what another pool holds."""
    with pytest.raises(BackendError, match="16 of 16 blocks hold other bytes"):
        pair.target.measure(pair.measure(peer_seed="c"))


def test_a_backend_that_only_says_that_it_moved_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = TcpBackend.post

    def lie(self: TcpBackend, request: ReadRequest) -> object:
        short = msgspec.structs.replace(
            request,
            source_blocks=request.source_blocks[:-1],
            target_blocks=request.target_blocks[:-1],
        )
        packed = b"".join(block.to_bytes(4, "little") for block in short.source_blocks)
        grant = pair.source._grant(request.transfer, packed)
        return post(self, msgspec.structs.replace(short, grant=grant))

    monkeypatch.setattr(TcpBackend, "post", lie)
    with pytest.raises(BackendError, match="1 of 16 blocks hold other bytes"):
        pair.target.measure(pair.measure())


def test_both_directions_can_follow_each_other(pair: Pair) -> None:
    for _ in range(2):
        pair.target.measure(pair.measure())
    back = pair.target.open(Open(settings=SETTINGS, block_bytes=4096, seed="b"))
    assert isinstance(back, Opened)
    asked = pair.measure(
        peer=back.backends["tcp"].description,
        peer_seed="b",
        raw_address=back.raw_address,
        raw_token=back.raw_token,
    )
    assert pair.source.measure(asked).checked_blocks == 16


def test_without_the_key_nothing_is_read() -> None:
    made = Pair(source_key=OTHER_KEY)
    try:
        with pytest.raises(BackendError, match="refused"):
            made.target.measure(made.measure())
    finally:
        made.close()


def test_the_raw_stream_is_for_those_that_have_its_token(pair: Pair) -> None:
    with pytest.raises(BackendError, match="raw stream"):
        pair.target.measure(pair.measure(raw_token=b"x" * raw.TOKEN_BYTES))
    host, port = pair.given.raw_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b"y" * raw.TOKEN_BYTES + (1 << 20).to_bytes(8, "little"))
        try:
            got = stranger.recv(1)
        except ConnectionResetError:
            got = b""
        assert got == b""


def test_backends_that_cannot_work_are_left_out_with_the_reason() -> None:
    end = End(KEY)
    settings = msgspec.structs.replace(SETTINGS, backends=("peer", "tcp"))
    found = end.open(Open(settings=settings, block_bytes=4096, seed="a"))
    end.shut()
    assert list(found.backends) == ["tcp"]
    assert found.left_out["peer"]
    nowhere = msgspec.structs.replace(SETTINGS, memory="cuda")
    with pytest.raises(BackendError, match="cuda"):
        End(KEY, device=99).open(Open(settings=nowhere, block_bytes=4096, seed="a"))


def test_a_wrong_option_leaves_nothing_open() -> None:
    threads = set(threading.enumerate())
    end = End(KEY)
    settings = msgspec.structs.replace(SETTINGS, options={"tcp": {"wings": 2}})
    with pytest.raises(ConfigError, match="wings"):
        end.open(Open(settings=settings, block_bytes=4096, seed="a"))
    assert set(threading.enumerate()) <= threads


def test_a_pool_knows_its_own_bytes_and_no_others() -> None:
    pool = HostPool(Shape(blocks=8, layers=1, piece_bytes=4096), "a")
    assert pool.wrong(range(8), "a", range(8)) == []
    assert pool.wrong([1, 2], "a", [2, 2]) == [1]
    pool.poison([3])
    assert pool.wrong(range(8), "a", range(8)) == [3]


def test_a_pool_of_layers_misses_a_single_piece() -> None:
    shape = Shape(blocks=4, layers=3, piece_bytes=512)
    pool, other = HostPool(shape, "a"), HostPool(shape, "b")
    assert pool.regions.block_bytes == 3 * 512
    views = BlockViews(pool.regions)
    for layer, piece in enumerate(BlockViews(other.regions).block(2)):
        views.block(1)[layer][:] = piece
    assert pool.wrong([1], "b", [2]) == []
    views.block(1)[1][:] = BlockViews(other.regions).block(2)[2]
    assert pool.wrong([1], "b", [2]) == [1]


@pytest.mark.parametrize(
    ("memory", "same_host_only", "same_host", "kind"),
    [
        ("host", True, True, "memcpy"),
        ("host", False, True, "stream"),
        ("host", False, False, "stream"),
        ("cuda", True, True, "device_copy"),
        ("cuda", False, True, "device_copy"),
        ("cuda", False, False, "stream"),
    ],
)
def test_the_raw_limit_of_a_link(
    memory: str, same_host_only: bool, same_host: bool, kind: str
) -> None:
    assert raw_kind(memory, same_host_only, same_host) == kind


def test_sizes_and_options_are_read_as_people_write_them() -> None:
    assert (
        parse_size("x", "64KiB") == parse_size("x", "65536") == parse_size("x", "64 kib") == 65536
    )
    assert parse_sizes("x", ["4KiB,1MiB", "4096"]) == (4096, 1 << 20)
    assert parse_assigned("x", ["tcp.connections=4", "tcp.listen_host=::1"]) == {
        "tcp": {"connections": 4, "listen_host": "::1"}
    }
    for text in ("", "0", "-1", "1.5MiB", "MiB"):
        with pytest.raises(ConfigError, match="is no size"):
            parse_size("x", text)
