"""Back-pressure: what goes beyond a bound is refused at once as busy, and costs no memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.contract.pools import Pool
from tests.unit.backends.support import WAIT_S, Source, ask, eventually, post, read, until_closed

from kvferry.errors import BackendError
from kvferry_backends.tcp.admission import Admission, TooBusy
from kvferry_backends.tcp.backend import TcpBackend
from kvferry_backends.tcp.wire import HEAD_BYTES, encode_part, head_reason

MIB = 1 << 20


class Held:
    """A source that serves nothing before it is let go. It halts within the second check, so
    after the transfer was admitted."""

    def __init__(self, **options: object) -> None:
        self._go_on = threading.Event()
        self._checks: dict[str, int] = {}
        self._lock = threading.Lock()
        self.entered = threading.Semaphore(0)
        pool = Pool(8, [MIB])
        pool.fill("held")
        self.source = Source(pool, self._check, **options)

    def _check(self, transfer: str, grant: bytes, packed: bytes) -> bool:
        with self._lock:
            self._checks[transfer] = nth = self._checks.get(transfer, 0) + 1
        if nth == 2:
            self.entered.release()
            return self._go_on.wait(WAIT_S)
        return True

    def let_go(self) -> None:
        self._go_on.set()

    def close(self) -> None:
        self.let_go()
        self.source.backend.close()


@pytest.fixture
def target() -> Iterator[TcpBackend]:
    made = TcpBackend({"connections": 1, "chunk_blocks": 1})
    made.register(Pool(8, [MIB]).regions, lambda *call: False)
    yield made
    made.close()


@pytest.mark.parametrize("options", [{"serve_transfers": 1}, {"serve_bytes": 3 * MIB}])
def test_one_transfer_too_many_is_refused_as_busy_and_later_served(
    target: TcpBackend, options: dict[str, object]
) -> None:
    held = Held(**options)
    first = post(target, held.source, "t.1", 2)
    assert held.entered.acquire(timeout=WAIT_S)
    outcome = read(target, held.source, "t.2", blocks=2)
    assert outcome.error == "busy"
    assert "being served" in outcome.detail
    held.let_go()
    served = first.wait(WAIT_S)
    assert served is not None
    assert served.error == ""
    assert read(target, held.source, "t.3", blocks=2).error == ""
    held.close()


def test_within_the_bounds_both_are_served(target: TcpBackend) -> None:
    """Negative control."""
    held = Held(serve_transfers=2, serve_bytes=4 * MIB)
    posted = [post(target, held.source, "t.1", 2), post(target, held.source, "t.2", 2)]
    for _ in posted:
        assert held.entered.acquire(timeout=WAIT_S)
    held.let_go()
    assert [outcome.error for one in posted if (outcome := one.wait(WAIT_S))] == ["", ""]
    held.close()


def test_the_parts_of_one_transfer_count_once_and_a_large_one_is_served_alone() -> None:
    bounds = Admission(transfers_max=2, bytes_max=100)
    with ExitStack() as served:
        served.enter_context(bounds.admit("large", 1000))
        served.enter_context(bounds.admit("large", 1000))
        with pytest.raises(TooBusy, match="busy"):
            served.enter_context(bounds.admit("small", 1))
    with ExitStack() as served:
        for transfer in ("a", "b", "a"):
            served.enter_context(bounds.admit(transfer, 50))
        with pytest.raises(TooBusy, match="2 transfers"):
            served.enter_context(bounds.admit("c", 0))
    with bounds.admit("c", 100):
        pass


def test_when_all_connections_are_busy_one_more_hears_so(target: TcpBackend) -> None:
    held = Held(serve_connections=2)
    others = TcpBackend({"connections": 1, "chunk_blocks": 1})
    others.register(Pool(8, [MIB]).regions, lambda *call: False)
    posted = [post(others, held.source, "t.1", 2), post(others, held.source, "t.2", 2)]
    for _ in posted:
        assert held.entered.acquire(timeout=WAIT_S)
    outcome = read(target, held.source, "t.3")
    assert outcome.error == "busy"
    assert "2 connections" in outcome.detail
    with held.source.connect() as late:
        assert head_reason(until_closed(late)[:HEAD_BYTES]).startswith("busy")
    held.let_go()
    assert [outcome.error for one in posted if (outcome := one.wait(WAIT_S))] == ["", ""]
    others.close()
    held.close()


def test_idle_connections_make_room_for_new_ones() -> None:
    pool = Pool(8, [1000])
    pool.fill("raw")
    source = Source(pool, serve_connections=4)
    idlers = [source.connect() for _ in range(4)]
    eventually(lambda: source.connections() == 4, "all places are taken")
    assert ask(source, source.part())[0] == ""
    assert until_closed(idlers[0]) == b""
    for sock in idlers:
        sock.close()
    source.backend.close()


def test_a_target_that_writes_on_after_the_refusal_still_hears_it() -> None:
    """The source closes with our request unread, which resets the connection."""
    held = Held(serve_connections=1)
    with held.source.connect() as served:
        served.sendall(encode_part(held.source.part(chunk_blocks=1)))
        assert held.entered.acquire(timeout=WAIT_S)
        for nth in range(20):
            target = TcpBackend({"connections": 1})
            target.register(Pool(8, [MIB]).regions, lambda *call: False)
            assert read(target, held.source, f"t.{nth}").error == "busy"
            target.close()
    held.close()


def test_reads_of_ours_under_way_are_bounded() -> None:
    held = Held()
    target = TcpBackend({"connections": 1, "chunk_blocks": 1, "reads": 3})
    target.register(Pool(8, [MIB]).regions, lambda *call: False)
    posted = [post(target, held.source, f"t.{nth}", 2) for nth in range(3)]
    with pytest.raises(BackendError, match=r"3 reads .*option reads"):
        post(target, held.source, "t.4", 2)
    held.let_go()
    assert [outcome.error for one in posted if (outcome := one.wait(WAIT_S))] == [""] * 3
    last = post(target, held.source, "t.5", 2).wait(WAIT_S)
    assert last is not None
    assert last.error == ""
    target.close()
    held.close()
