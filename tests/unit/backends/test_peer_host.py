"""Which process is read, what it takes, and what is said where it cannot be."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contract.pools import Pool, pattern, snapshot

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import ReadOutcome, ReadRequest, Regions, Span
from kvferry_backends.peer_host import system
from kvferry_backends.peer_host.backend import READS_MAX, PeerHostBackend
from kvferry_backends.peer_host.wire import PeerDescription, decode

WAIT_S = 30.0
ROOT = Path(__file__).resolve().parents[3]
Make = Callable[..., PeerHostBackend]


def allow(transfer: str, grant: bytes, packed: bytes) -> bool:
    return True


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[PeerHostBackend] = []

    def one(pool: Pool, **options: object) -> PeerHostBackend:
        backend = PeerHostBackend(options)
        made.append(backend)
        backend.register(pool.regions, allow)
        return backend

    yield one
    for backend in made:
        backend.close()


@pytest.fixture
def source(make: Make) -> PeerHostBackend:
    pool = Pool(8, [4096])
    pool.fill("source")
    return make(pool)


def read(target: PeerHostBackend, peer: bytes) -> ReadOutcome:
    outcome = target.post(
        ReadRequest(
            transfer="t",
            peer=peer,
            grant=b"",
            source_blocks=range(8),
            target_blocks=range(8),
            deadline_s=WAIT_S,
        )
    ).wait(WAIT_S)
    assert outcome is not None
    return outcome


def changed(description: bytes, **changes: object) -> bytes:
    """The description with other fields, those of the process included."""
    peer: PeerDescription = decode(description)
    process = {k: v for k, v in changes.items() if k in type(peer.process).__struct_fields__}
    rest = {k: v for k, v in changes.items() if k not in process}
    one = msgspec.structs.replace(peer.process, **process)
    return msgspec.msgpack.encode(msgspec.structs.replace(peer, process=one, **rest))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"started": 1}, "unreachable"),
        ({"nonce": bytes(32)}, "unreachable"),
        ({"pid": 2**22 + 1}, "unreachable"),
        ({"nonce_address": 4096}, "error"),
    ],
)
def test_another_process_than_described_is_not_read(
    make: Make, source: PeerHostBackend, changes: dict[str, object], error: str
) -> None:
    pool = Pool(8, [4096])
    target = make(pool)
    before = snapshot(pool)
    outcome = read(target, changed(source.describe(), **changes))
    assert (outcome.error, outcome.bytes) == (error, 0), outcome
    assert snapshot(pool) == before
    # Negative control: what is not changed is read.
    assert read(target, changed(source.describe())).error == ""
    assert pool.get(3) == pattern("source", 3, 4096)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "elsewhere"}, "another host"),
        ({"namespace": "pid:[1]"}, "shareProcessNamespace"),
        ({"protocol": 99}, "protocol 99"),
    ],
)
def test_an_unreachable_place_is_refused_at_once_with_the_cure(
    make: Make, source: PeerHostBackend, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(BackendError, match=words):
        read(make(Pool(8, [4096])), changed(source.describe(), **changes))


def test_memory_that_went_away_is_an_error_and_not_a_crash(
    make: Make, source: PeerHostBackend
) -> None:
    peer = decode(source.describe())
    with mmap.mmap(-1, mmap.PAGESIZE) as gone:
        address = ctypes.addressof(ctypes.c_char.from_buffer(gone))
    spans = tuple(msgspec.structs.replace(span, address=address) for span in peer.spans)
    outcome = read(make(Pool(8, [4096])), changed(source.describe(), spans=spans))
    assert outcome.error == "error"
    assert "bytes of process" in outcome.detail or "cannot be read" in outcome.detail


@pytest.mark.parametrize(
    ("scope", "cure"),
    [
        (0, "as the same user"),
        (1, "allow_any_reader: true"),
        (2, "ptrace_scope is 2"),
    ],
)
def test_a_process_that_may_not_be_read_names_the_cure(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make: Make,
    source: PeerHostBackend,
    scope: int,
    cure: str,
) -> None:
    """The kernel's no is a fake: whether this machine says it depends on who runs the test."""
    yama = tmp_path / "ptrace_scope"
    yama.write_text(f"{scope}\n")
    monkeypatch.setattr(system, "_YAMA", yama)
    pool = Pool(8, [4096])
    target = make(pool)
    before = snapshot(pool)
    monkeypatch.setattr(system._libc, "process_vm_readv", refuse)
    outcome = read(target, source.describe())
    assert outcome.error == "error"
    assert cure in outcome.detail
    assert snapshot(pool) == before
    with pytest.raises(BackendUnavailable, match="seccomp"):
        PeerHostBackend()


def refuse(*call: object) -> int:
    ctypes.set_errno(1)
    return -1


def test_memory_that_cannot_be_read_is_not_registered(tmp_path: Path) -> None:
    """A mapping behind its file's end faults, as memory that a driver maps does."""
    file = tmp_path / "short"
    file.write_bytes(b"x")
    with file.open("r+b") as opened:
        os.ftruncate(opened.fileno(), mmap.PAGESIZE)
        with mmap.mmap(opened.fileno(), mmap.PAGESIZE) as mapped:
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            os.ftruncate(opened.fileno(), 0)
            backend = PeerHostBackend()
            with pytest.raises(BackendError, match="cannot be read"):
                backend.register(Regions((Span(address, 64, 64),), 4), allow)
            backend.close()


def test_reads_under_way_are_bounded(
    monkeypatch: pytest.MonkeyPatch, make: Make, source: PeerHostBackend
) -> None:
    target = make(Pool(8, [4096]))
    with monkeypatch.context() as patch:
        patch.setattr(target._threads, "submit", lambda work: None)
        request = ReadRequest(
            transfer="t",
            peer=source.describe(),
            grant=b"",
            source_blocks=[0],
            target_blocks=[0],
        )
        posted = [target.post(request) for _ in range(READS_MAX)]
        with pytest.raises(BackendError, match=f"{READS_MAX} reads"):
            target.post(request)
    for one in posted:
        one.part_failed("error", "never started")  # type: ignore[attr-defined]
    assert read(target, source.describe()).error == ""


READER = """
import os, sys
from tests.contract.pools import Pool, snapshot
from kvferry.ports.backend import ReadRequest
from kvferry_backends.peer_host.backend import PeerHostBackend
pool = Pool(8, [4096])
before = snapshot(pool)
target = PeerHostBackend()
target.register(pool.regions, lambda *call: True)
os.setgid(65534)
os.setuid(65534)
outcome = target.post(
    ReadRequest(
        transfer="t", peer=bytes.fromhex(sys.argv[1]), grant=b"",
        source_blocks=range(8), target_blocks=range(8),
    )
).wait(20)
print(f"{outcome.error}: {outcome.detail}", "unchanged" if snapshot(pool) == before else "CHANGED")
target.close()
"""
"""Reads as another user, which only root can become, and once everything is imported."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_told_why_it_cannot_read(source: PeerHostBackend) -> None:
    """The kernel's own no."""
    reader = subprocess.run(
        [sys.executable, "-c", READER, source.describe().hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert reader.stdout.startswith("error: process "), reader.stdout
    assert "run both as the same user" in reader.stdout or "ptrace_scope" in reader.stdout
    assert "unchanged" in reader.stdout
