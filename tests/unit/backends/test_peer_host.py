"""Which process is read, what it takes, and what is said where it cannot be."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.contract.pools import Pool, pattern, snapshot

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import ReadOutcome, ReadRequest, Regions, Span
from kvferry_backends import identity
from kvferry_backends.identity import own_identity
from kvferry_backends.peer_host import system
from kvferry_backends.peer_host.backend import READS_MAX, PeerHostBackend
from kvferry_backends.peer_host.options import parse_options
from kvferry_backends.peer_host.wire import PeerDescription, decode

WAIT_S = 30.0
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


def test_yama_is_told_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    yama = tmp_path / "ptrace_scope"
    yama.write_text("1\n")
    monkeypatch.setattr(system, "_YAMA", yama)
    told: list[bool] = []
    monkeypatch.setattr(system, "admit_any_reader", lambda: told.append(True))
    make(Pool(1, [8]))
    assert not told
    assert "allow_any_reader: true" in caplog.text
    make(Pool(1, [8]), allow_any_reader=True)
    assert told
    yama.write_text("0\n")
    make(Pool(1, [8]), allow_any_reader=True)
    assert len(told) == 1


def test_without_yama_the_option_cannot_be_granted() -> None:
    if system.ptrace_scope() or Path("/proc/sys/kernel/yama").exists():
        system.admit_any_reader()
    else:
        with pytest.raises(BackendError, match="allow_any_reader"):
            system.admit_any_reader()


def test_own_identity_is_what_proc_shows() -> None:
    mine = own_identity()
    assert mine.pid == os.getpid()
    assert re.fullmatch(r"pid:\[\d+\]", mine.namespace)


def test_a_proc_of_another_namespace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.os, "getpid", lambda: 1)
    with pytest.raises(BackendUnavailable, match="mount the /proc"):
        own_identity()


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow_every_reader": True}, "unknown option allow_every_reader; known are allow_any"),
        ({"allow_any_reader": "yes"}, "allow_any_reader"),
        ({"threads": 17}, "threads 17 is not 0 to 16"),
        ({"call_bytes": 1}, "call_bytes 1 is not 4096"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PeerHostBackend(options)


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (4, 2), (64, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, n=cores: set(range(n)))
        assert parse_options({}).threads_per_read == threads
    assert parse_options({"threads": 3}).threads_per_read == 3
