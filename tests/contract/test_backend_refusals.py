"""What does not fit is refused as a whole: a bad id in a list moves none of the good ones."""

from __future__ import annotations

import msgspec
import pytest
from tests.contract.conftest import Serve
from tests.contract.kinds import Kind
from tests.contract.permits import allow
from tests.contract.pools import Pool, pattern, snapshot
from tests.contract.reading import finished, post
from tests.contract.sources import SourceProcess

from kvferry.errors import BackendError

GOOD = list(range(12))
LISTS: dict[str, tuple[list[int], list[int]]] = {
    "a target behind the pool": ([0], [16]),
    "a target before the pool": ([0], [-1]),
    "a bad target among good ones": ([*GOOD, 12], [*GOOD, 16]),
    "a source before the pool": ([-1], [0]),
    "a source id that no pool has": ([1 << 32], [0]),
    "lists of two lengths": ([0, 1], [2]),
    "nothing": ([], []),
    "a target twice": ([0, 1], [2, 2]),
}
SOURCES: dict[str, list[int]] = {
    "the first behind the pool": [16],
    "among good ones": [*GOOD, 16],
    "far behind the pool": [0, 1, 1 << 31],
    "the largest there is": [*GOOD, 4_000_000_000],
}


@pytest.mark.parametrize("lists", LISTS)
def test_what_does_not_fit_is_refused_at_once(
    kind: Kind, serve: Serve, sources: SourceProcess, lists: str
) -> None:
    source = sources.serve(16, [1024])
    pool = kind.pool(16, [1024])
    target = serve(pool)
    before = snapshot(pool)
    with pytest.raises(BackendError):
        post(target, source, *LISTS[lists])
    assert snapshot(pool) == before
    # Positive control: a refusal breaks nothing.
    assert finished(post(target, source, GOOD, GOOD)).error == ""
    assert pool.get(3) == pattern("source", 3, 1024)
    source.close()


@pytest.mark.parametrize("listed", SOURCES)
def test_source_blocks_out_of_range_move_nothing(
    kind: Kind, serve: Serve, sources: SourceProcess, listed: str
) -> None:
    source = sources.serve(16, [1024])
    pool = kind.pool(16, [1024])
    target = serve(pool)
    before = snapshot(pool)
    blocks = SOURCES[listed]
    try:
        outcome = finished(post(target, source, blocks, range(len(blocks))))
    except BackendError:
        pass
    else:
        assert outcome.error == "refused"
        assert outcome.bytes == 0
    assert snapshot(pool) == before
    assert finished(post(target, source, GOOD, GOOD)).error == ""
    source.close()


def test_blocks_of_another_shape_are_refused(
    kind: Kind, serve: Serve, sources: SourceProcess
) -> None:
    source = sources.serve(16, [1024])
    pool = kind.pool(16, [512, 512])
    before = snapshot(pool)
    with pytest.raises(BackendError):
        post(serve(pool), source, [0], [0])
    assert snapshot(pool) == before
    source.close()


def test_what_is_no_description_is_refused(kind: Kind, serve: Serve) -> None:
    target = serve(kind.pool(4, [1024]))
    for nonsense in (b"", b"nonsense", b"\x80", bytes(4096)):
        with pytest.raises(BackendError):
            post(target, nonsense, [0], [0])


def test_nothing_goes_before_register_or_twice(kind: Kind, serve: Serve) -> None:
    backend = kind.make()
    with pytest.raises(BackendError):
        backend.describe()
    with pytest.raises(BackendError):
        post(backend, b"", [0], [0])
    backend.close()
    registered = serve(kind.pool(4, [1024]))
    with pytest.raises(BackendError):
        registered.register(kind.pool(4, [1024]).regions, allow)


def test_memory_of_another_kind_is_refused(kind: Kind) -> None:
    backend = kind.make()
    regions = Pool(4, [1024]).regions
    other = "cuda" if "cuda" not in kind.capabilities.memory else "tape"
    with pytest.raises(BackendError):
        backend.register(msgspec.structs.replace(regions, kind=other), allow)
    backend.close()
