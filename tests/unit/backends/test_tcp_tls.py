"""TLS on both ends: what it carries, whom it lets in, and how each mistake is named."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.pools import Pool, snapshot, wrong_bytes
from tests.unit.backends.support import WAIT_S, Source, eventually, post, read
from tests.unit.backends.tap import Tap

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import ReadOutcome, Verify
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.tls.process import TlsGate
from kvferry_backends.tcp.wire import encode_part

STORE = Path(__file__).parent / "certificates"
WIDTH = 300_000


def files(cert: str = "node", ca: str = "ca", key: str = "node") -> dict[str, object]:
    return {
        "tls_cert_file": str(STORE / f"{cert}.pem"),
        "tls_key_file": str(STORE / f"{key}.key"),
        "tls_ca_file": str(STORE / f"{ca}.pem"),
    }


def stranger() -> dict[str, object]:
    """Good in itself, of another CA."""
    return files("stranger", "other_ca", "stranger")


@pytest.fixture
def source() -> Iterator[Source]:
    pool = Pool(8, [WIDTH, 7])
    pool.fill("secret")
    made = Source(pool, **files())
    yield made
    made.backend.close()


@pytest.fixture
def target() -> Iterator[TcpBackend]:
    made = TcpBackend({**files(), "connections": 2})
    made.register(Pool(8, [WIDTH, 7]).regions, lambda *call: False)
    yield made
    made.close()


def gate_of(backend: TcpBackend) -> TlsGate:
    listener = backend._listener
    assert listener is not None
    assert isinstance(listener._door, TlsGate)
    return listener._door


def read_with(source: Source, **options: object) -> ReadOutcome:
    target = TcpBackend(options)
    target.register(Pool(8, [WIDTH, 7]).regions, lambda *call: False)
    try:
        return read(target, source)
    finally:
        target.close()


@pytest.mark.parametrize("connections", [1, 3])
def test_blocks_arrive_in_their_places(source: Source, connections: int) -> None:
    pool = Pool(8, [WIDTH, 7])
    before = snapshot(pool)
    target = TcpBackend({**files(), "connections": connections})
    target.register(pool.regions, lambda *call: False)
    for nth in range(3):
        outcome = read(target, source, f"t.{nth}", blocks=6, verify=Verify.FULL)
        assert (outcome.error, outcome.verified_blocks) == ("", 6)
    expected = {block: source.pool.get(block) for block in range(6)}
    assert wrong_bytes(before, pool, expected) == ([], False)
    assert wrong_bytes(before, pool, expected | {0: source.pool.get(1)})[0] == [0]
    target.close()


def test_nothing_goes_over_the_wire_in_clear(source: Source) -> None:
    """Seen by a relay between the two; without TLS the same look finds the blocks."""
    sought = source.pool.get(3)[100:164]
    for options, visible in ((files(), False), ({}, True)):
        with Tap() as tap:
            through = Source(source.pool, advertise=tap.address, **options)
            listener = through.backend._listener
            assert listener is not None
            tap.upstream = listener.port
            outcome = read_with(through, connections=1, **options)
        through.backend.close()
        assert outcome.error == ""
        assert (sought in tap.seen) is visible


def test_a_source_of_another_ca_is_not_read_from(target: TcpBackend) -> None:
    foreign = Source(Pool(8, [WIDTH, 7]), **stranger())
    outcome = read(target, foreign)
    assert outcome.error == "error"
    assert "the source's certificate is not accepted here" in outcome.detail
    assert "tls_cert_file" in outcome.detail
    assert "our tls_ca_file" in outcome.detail
    foreign.backend.close()


def test_a_target_of_another_ca_is_turned_away_by_name(
    source: Source, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It trusts the source's CA besides its own, so that the source has to say no."""
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join((STORE / f"{ca}.pem").read_bytes() for ca in ("ca", "other_ca")))
    with caplog.at_level(logging.WARNING):
        outcome = read_with(source, **{**stranger(), "tls_ca_file": str(both)})
        eventually(lambda: "turned away" in caplog.text, "the source says so")
    assert outcome.error == "error"
    assert "does not accept our certificate" in outcome.detail
    assert "our tls_cert_file" in outcome.detail
    assert "its certificate is not accepted here" in caplog.text


def test_one_side_without_tls_is_named_before_a_byte_is_sent(
    source: Source, target: TcpBackend
) -> None:
    clear = Source(Pool(8, [WIDTH, 7]))
    with pytest.raises(BackendError, match=r"serves without TLS .*tls_cert_file.*on both"):
        read(target, clear)
    with pytest.raises(BackendError, match=r"serves with TLS .*tls_cert_file.*on both"):
        read(clear.backend, source)
    clear.backend.close()


def test_who_speaks_no_tls_is_turned_away(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), source.connect() as sock:
        sock.sendall(encode_part(source.part()))
        eventually(lambda: "speaks no TLS: set tls_cert_file" in caplog.text, "it is named")


def test_a_source_that_breaks_off_or_speaks_no_tls_is_named(
    source: Source, target: TcpBackend
) -> None:
    """Something else took over its port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            taken, _ = other.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                taken.recv(1 << 16)

        thread = threading.Thread(target=answer)
        thread.start()
        elsewhere = Source(source.pool, advertise=address, **files())
        outcome = read(target, elsewhere)
        thread.join(WAIT_S)
    assert outcome.error == "error"
    assert "speaks no TLS" in outcome.detail
    elsewhere.backend.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_key_file": "", "tls_ca_file": ""}, "needs tls_key_file, tls_ca_file"),
        ({"tls_cert_file": "/nowhere/cert.pem"}, "tls_cert_file cannot be read.*/nowhere"),
        ({"tls_key_file": str(STORE)}, "tls_key_file cannot be read"),
        ({"tls_ca_file": str(STORE / "node.key")}, "tls_ca_file .*holds no certificate"),
        ({"tls_cert_file": str(STORE / "make.sh")}, "tls_cert_file .*make.sh"),
        ({"tls_key_file": str(STORE / "stranger.key")}, "tls_key_file .*stranger"),
        ({"tls_key_file": str(STORE / "locked.key")}, "without a password"),
        ({"tls_cert_file": str(STORE / "expired.pem")}, "expired.pem.*has expired"),
        ({"tls_ca_file": str(STORE / "other_ca.pem")}, "node.pem does not pass .*other_ca.pem"),
    ],
)
def test_a_wrong_file_is_named_at_start(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TcpBackend({**files(), **changes})


def test_a_port_that_is_taken_is_named(source: Source) -> None:
    port = int(source.peer.address.rpartition(":")[2])
    second = TcpBackend({**files(), "listen_port": port})
    with pytest.raises(BackendUnavailable, match=f"{port}.*listen_port"):
        second.register(Pool(1, [1]).regions, lambda *call: True)
    second.close()


def test_a_refusal_is_heard_through_tls(target: TcpBackend) -> None:
    stern = Source(Pool(8, [WIDTH, 7]), lambda *call: False, **files())
    outcome = read(target, stern)
    assert outcome.error == "refused"
    assert "grant" in outcome.detail
    stern.backend.close()


def test_busy_is_heard_through_tls(target: TcpBackend) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(*call: object) -> bool:
        entered.set()
        return go_on.wait(WAIT_S)

    full = Source(Pool(8, [WIDTH, 7]), slow, serve_connections=1, **files())
    first = post(target, full, "t.1", blocks=1)
    assert entered.wait(WAIT_S)
    for nth in range(5):
        assert read(target, full, f"busy.{nth}", blocks=1).error == "busy"
    go_on.set()
    outcome = first.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == ""
    full.backend.close()


def test_the_gate_ends_with_its_backend() -> None:
    source = Source(Pool(1, [1]), **files())
    process = gate_of(source.backend)._process
    assert process.poll() is None
    source.backend.close()
    assert process.poll() == 0


def test_a_gate_that_dies_fails_reads_by_name(
    source: Source, target: TcpBackend, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(target, source, "t.1").error == ""
    with caplog.at_level(logging.ERROR):
        os.kill(gate_of(target)._process.pid, signal.SIGKILL)
        eventually(lambda: "restart the engine" in caplog.text, "the engine's log says so")
    outcome = read(target, source, "t.2")
    assert outcome.error == "error"
    assert "TLS process" in outcome.detail
