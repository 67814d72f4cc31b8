"""Peers are mapped once, and unmapped when they end: told, noticed at the next use, or reaped.

What is mapped is a stand-in, for there is no GPU here; the processes behind it are real.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from kvferry.errors import BackendError
from kvferry_backends.identity import Identity, lives, own_identity, started_at
from kvferry_backends.peer.mapping import Mappings
from kvferry_backends.peer.wire import PROTOCOL, PeerDescription

WAIT_S = 20.0


class Memory:
    """Counts how often it was unmapped."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.unmapped = 0
        self.stuck = stuck

    def close(self) -> None:
        self.unmapped += 1
        if self.stuck:
            raise BackendError("cuIpcCloseMemHandle failed: CUDA_ERROR_UNKNOWN (999)")


class Bench:
    """Mappings over stand-in memory; remembers what was opened."""

    def __init__(self, unseen_idle_s: float = 60.0) -> None:
        self.opened: list[Memory] = []
        self.ours = own_identity()
        self.refuses = ""
        self.mappings = Mappings(
            self._open, lambda process: lives(process, self.ours), unseen_idle_s=unseen_idle_s
        )

    def _open(self, peer: PeerDescription) -> Memory:
        if self.refuses:
            raise BackendError(self.refuses)
        self.opened.append(Memory(stuck=peer.instance == "stuck"))
        return self.opened[-1]


def peer(instance: str, process: Identity) -> PeerDescription:
    return PeerDescription(
        protocol=PROTOCOL, process=process, instance=instance, blocks=1, spans=(), allocations=()
    )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.mappings.close()


@pytest.fixture
def source() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def identity_of(process: subprocess.Popen[bytes]) -> Identity:
    started = started_at(process.pid)
    assert started is not None
    return msgspec.structs.replace(own_identity(), pid=process.pid, started=started)


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_a_peer_is_mapped_once_for_many_reads(bench: Bench) -> None:
    first = bench.mappings.take(peer("a", bench.ours))
    bench.mappings.give_back(first)
    second = bench.mappings.take(peer("a", bench.ours))
    bench.mappings.give_back(second)
    assert first is second
    assert len(bench.opened) == 1
    # Another life of the same backend has other memory.
    bench.mappings.give_back(bench.mappings.take(peer("b", bench.ours)))
    assert len(bench.opened) == 2
    assert [memory.unmapped for memory in bench.opened] == [0, 0]


def test_dropped_it_is_unmapped_at_once_and_mapped_anew_when_asked_for(bench: Bench) -> None:
    bench.mappings.give_back(bench.mappings.take(peer("a", bench.ours)))
    bench.mappings.drop("never met", "told so")
    assert bench.opened[0].unmapped == 0
    bench.mappings.drop("a", "told so")
    bench.mappings.drop("a", "told so again")
    assert bench.opened[0].unmapped == 1
    bench.mappings.give_back(bench.mappings.take(peer("a", bench.ours)))
    assert len(bench.opened) == 2


def test_a_reader_under_way_keeps_it_mapped_and_learns_why_it_was_dropped(bench: Bench) -> None:
    readers = [bench.mappings.take(peer("a", bench.ours)) for _ in range(2)]
    bench.mappings.drop("a", "told so")
    bench.mappings.give_back(readers[0])
    assert bench.opened[0].unmapped == 0
    assert bench.mappings.give_back(readers[1]) == "told so"
    assert bench.opened[0].unmapped == 1


def test_a_killed_source_is_unmapped_without_being_told(
    bench: Bench, source: subprocess.Popen[bytes]
) -> None:
    bench.mappings.give_back(bench.mappings.take(peer("a", identity_of(source))))
    bench.mappings.give_back(bench.mappings.take(peer("living", bench.ours)))
    source.kill()  # And not waited for: its parent may be slow.
    assert eventually(lambda: bench.opened[0].unmapped == 1)
    assert bench.opened[1].unmapped == 0


def test_a_dead_source_is_refused_at_the_next_use(source: subprocess.Popen[bytes]) -> None:
    ours = own_identity()
    theirs = identity_of(source)
    # A life seen only by take(): the reaper believes that all live.
    known = {"dead": False}
    mappings = Mappings(
        lambda peer: Memory(),
        lambda process: (
            not known["dead"]
            if threading.current_thread() is threading.main_thread()
            else lives(ours, ours)
        ),
    )
    mapping = mappings.take(peer("a", theirs))
    mappings.give_back(mapping)
    known["dead"] = True
    with pytest.raises(BackendError, match=f"process {source.pid} has ended"):
        mappings.take(peer("a", theirs))
    assert mapping.opened.unmapped == 1
    mappings.close()


def test_a_source_that_dies_while_it_is_read_is_lost_for_that_read(
    bench: Bench, source: subprocess.Popen[bytes]
) -> None:
    theirs = identity_of(source)
    assert bench.mappings.give_back(bench.mappings.take(peer("a", theirs))) == ""
    reader = bench.mappings.take(peer("a", theirs))
    source.kill()
    assert eventually(lambda: lives(theirs, bench.ours) is False)
    assert bench.mappings.give_back(reader) == f"process {source.pid} has ended"
    assert bench.opened[0].unmapped == 1


def test_a_source_whose_life_cannot_be_seen_is_given_up_after_idling() -> None:
    bench = Bench(unseen_idle_s=0.2)
    hidden = msgspec.structs.replace(bench.ours, namespace="pid:[1]")
    in_use = bench.mappings.take(peer("in use", hidden))
    bench.mappings.give_back(bench.mappings.take(peer("idle", hidden)))
    bench.mappings.give_back(bench.mappings.take(peer("seen", bench.ours)))
    assert eventually(lambda: bench.opened[1].unmapped == 1)
    assert [memory.unmapped for memory in bench.opened] == [0, 1, 0]
    bench.mappings.give_back(in_use)
    bench.mappings.close()


def test_close_unmaps_all_and_ends_the_thread(bench: Bench) -> None:
    before = threading.active_count()
    bench.mappings.give_back(bench.mappings.take(peer("stuck", bench.ours)))
    bench.mappings.give_back(bench.mappings.take(peer("b", bench.ours)))
    assert threading.active_count() == before + 1
    bench.mappings.close()
    # One that cannot be unmapped does not keep the other mapped.
    assert [memory.unmapped for memory in bench.opened] == [1, 1]
    assert threading.active_count() == before
    with pytest.raises(BackendError, match="closed"):
        bench.mappings.take(peer("a", bench.ours))


def test_what_cannot_be_mapped_is_tried_again_next_time(bench: Bench) -> None:
    bench.refuses = "cuIpcOpenMemHandle_v2 failed"
    with pytest.raises(BackendError, match="cuIpcOpenMemHandle"):
        bench.mappings.take(peer("a", bench.ours))
    bench.refuses = ""
    bench.mappings.give_back(bench.mappings.take(peer("a", bench.ours)))
    assert len(bench.opened) == 1
