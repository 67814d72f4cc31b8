"""Several blocks of an engine hold one chain hash: requests computed the same side by side."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import chain, tracked
from tests.unit.connector.test_exports import Engine

from kvferry_connectors.vllm.items import Reused

BLOCKS = 6


def side_by_side(engine: Engine, *, lease: bool) -> list[bytes]:
    """Two requests compute one prompt; another engine awaits the second one's blocks if leased."""
    held = [engine.pool.get_new_blocks(BLOCKS) for _ in range(2)]
    hashes = chain("a", BLOCKS)
    for blocks, awaited in zip(held, (False, lease), strict=True):
        ids = [block.block_id for block in blocks]
        engine.exports.offer(tracked("a", hashes), ids, BLOCKS, awaited=awaited)
    for blocks in held:
        engine.pool.free_blocks(reversed(blocks))
    return hashes


def lost(engine: Engine) -> list[bytes]:
    """What the ledger is told that the cache has reused."""
    engine.exports.each_step()
    return sorted(one for item in engine.handed(Reused) for one in item.hashes)


@pytest.mark.parametrize("lease", [True, False])
def test_a_lease_holds_the_blocks_that_a_reader_is_granted(lease: bool) -> None:
    """All other blocks are handed out, and neither a reader nor the ledger loses by it."""
    engine = Engine()
    hashes = side_by_side(engine, lease=lease)
    engine.pin(hashes)
    others = engine.pool.get_new_blocks(engine.free)
    assert engine.table.held(hashes) == (BLOCKS if lease else 0)
    assert engine.done().intact == lease
    assert lost(engine) == ([] if lease else sorted(hashes))
    engine.pool.free_blocks(others)


def test_a_hash_is_offered_until_the_last_of_its_blocks_is_reused() -> None:
    engine = Engine()
    hashes = side_by_side(engine, lease=False)
    engine.pool.get_new_blocks(BLOCKS)
    assert lost(engine) == []
    assert engine.table.held(hashes) == BLOCKS
    engine.pin(hashes)
    assert engine.done().intact
    engine.pool.get_new_blocks(BLOCKS)
    assert lost(engine) == sorted(hashes)
    assert engine.table.held(hashes) == 0
    assert engine.exports._offers == {}
    assert engine.exports._holders == {}
