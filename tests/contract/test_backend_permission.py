"""No backend that serves on request sends a byte without a grant for exactly those blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.contract.conftest import Serve
from tests.contract.kinds import USABLE, Kind
from tests.contract.permits import deny, sign
from tests.contract.pools import pattern, snapshot
from tests.contract.reading import finished, post
from tests.contract.sources import Source, SourceProcess

from kvferry.ports.backend import Backend, ReadOutcome

WIDTH = 65536


@pytest.fixture(
    scope="session",
    params=[kind for kind in USABLE if not kind.capabilities.one_sided],
    ids=lambda kind: kind.label,
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Only backends whose source takes part in a read."""
    found: Kind = request.param
    return found


def read(
    target: Backend, source: Source, transfer: str, grant: bytes, blocks: Sequence[int]
) -> ReadOutcome:
    return finished(
        post(target, source, blocks, range(len(blocks)), transfer=transfer, grant=grant)
    )


def test_a_grant_opens_exactly_its_blocks(kind: Kind, serve: Serve, sources: SourceProcess) -> None:
    source = sources.serve(64, [WIDTH], "secret", permit="signed")
    pool = kind.pool(64, [WIDTH])
    target = serve(pool, deny)
    blocks = list(range(10, 50))
    grant = sign("g.1", blocks)
    before = snapshot(pool)
    for transfer, presented, asked in (
        ("g.1", b"", blocks),
        ("g.1", grant[:-1] + bytes([grant[-1] ^ 1]), blocks),
        ("g.2", grant, blocks),
        ("g.1", grant, blocks[:-1]),
        ("g.1", grant, [*blocks[:-1], 63]),
        ("g.1", grant, blocks[::-1]),
    ):
        outcome = read(target, source, transfer, presented, asked)
        assert outcome.error == "refused"
        assert "grant" in outcome.detail
        assert outcome.bytes == 0
        assert snapshot(pool) == before
    # Positive control, on the same two backends: refusals leave nothing broken behind.
    assert read(target, source, "g.1", grant, blocks).error == ""
    assert pool.get(0) == pattern("secret", 10, WIDTH)
    source.close()


@pytest.mark.parametrize("permit", ["deny", "broken"])
def test_a_check_that_says_no_or_fails_refuses(
    kind: Kind, serve: Serve, sources: SourceProcess, permit: str
) -> None:
    source = sources.serve(64, [WIDTH], permit=permit)
    pool = kind.pool(64, [WIDTH])
    before = snapshot(pool)
    assert read(serve(pool), source, "t", b"", [1, 2, 3]).error == "refused"
    assert snapshot(pool) == before
    source.close()
