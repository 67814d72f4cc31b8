"""Reads between several pairs, of one pair, and both ways, all at once."""

from __future__ import annotations

from tests.contract.conftest import Serve
from tests.contract.kinds import Kind
from tests.contract.pools import pattern
from tests.contract.reading import WAIT_S, finished, post
from tests.contract.sources import SourceProcess

WIDTHS = [4096, 4096]
BLOCK_BYTES = sum(WIDTHS)
NAMES = ("a", "b", "c")


def test_many_reads_between_several_pairs_at_once(
    kind: Kind, serve: Serve, sources: SourceProcess
) -> None:
    givers = {name: sources.serve(32, WIDTHS, name) for name in NAMES}
    pools = [kind.pool(96, WIDTHS) for _ in range(2)]
    targets = [serve(pool) for pool in pools]
    reads = [
        (pool, name, first, post(target, giver, range(16), range(first, first + 16)))
        for pool, target in zip(pools, targets, strict=True)
        for first, (name, giver) in zip(
            range(0, 96, 16), [*givers.items(), *givers.items()], strict=True
        )
    ]
    for pool, name, first, posted in reads:
        assert finished(posted).error == ""
        for nth in range(16):
            assert pool.get(first + nth) == pattern(name, nth, BLOCK_BYTES)
    # Negative control: what one giver holds is not what another does.
    assert pools[0].get(0) != pattern("b", 0, BLOCK_BYTES)
    for giver in givers.values():
        giver.close()


def test_both_ways_at_once(kind: Kind, serve: Serve, sources: SourceProcess) -> None:
    """Blocks 0 to 15 of each side are read by the other into its blocks 16 to 31."""
    theirs = sources.serve(32, WIDTHS, "theirs")
    pool = kind.pool(32, WIDTHS)
    pool.fill("ours")
    ours = serve(pool)
    sources.begin(
        do="read",
        number=theirs.number,
        peer=ours.describe().hex(),
        sources=list(range(16)),
        targets=list(range(16, 32)),
        wait_s=WAIT_S,
    )
    posted = post(ours, theirs, range(16), range(16, 32))
    outcome = finished(posted)
    answer = sources.answer()
    assert (outcome.error, answer["error"]) == ("", ""), (outcome, answer)
    for nth in range(16):
        assert pool.get(nth) == pattern("ours", nth, BLOCK_BYTES)
        assert pool.get(16 + nth) == pattern("theirs", nth, BLOCK_BYTES)
        assert theirs.block(16 + nth) == pattern("ours", nth, BLOCK_BYTES)
    theirs.close()


def test_many_reads_of_one_pair_at_once(kind: Kind, serve: Serve, sources: SourceProcess) -> None:
    source = sources.serve(120, WIDTHS, "one")
    pool = kind.pool(120, WIDTHS)
    target = serve(pool)
    posted = [
        post(target, source, range(first, first + 12), range(108 - first, 120 - first))
        for first in range(0, 120, 12)
    ]
    for one in posted:
        assert finished(one).error == ""
    for first in range(0, 120, 12):
        for nth in range(12):
            assert pool.get(108 - first + nth) == pattern("one", first + nth, BLOCK_BYTES)
    source.close()
