"""What goes to the host tier keeps its tenant's tag in the ledger."""

from __future__ import annotations

import pytest
from tests.unit.connector.support import BLOCK, chain, tracked
from tests.unit.connector.test_exports import Engine as PoolEngine
from tests.unit.host_tier.test_host_tier import Engine as HostEngine

from kvferry.core.events import Retained
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.items import HostOffered


@pytest.mark.parametrize("tag", ["a1b2c3", ""])
def test_a_run_in_the_host_tier_is_recorded_with_its_tenant(tag: str) -> None:
    engine, hosted = PoolEngine(), HostEngine()
    engine.exports.host_tier(hosted.tier)
    held = engine.pool.get_new_blocks(5)
    hashes, ids = chain("a", 5), [block.block_id for block in held]
    hosted.hashes.update(zip(ids, hashes, strict=True))
    one = tracked("r", hashes, params={"session": "talk"})
    one.tenant = tag
    offer, _ = engine.exports.offer(one, ids, 5)
    engine.exports.leasing._copy(offer)
    order = hosted.step()
    assert order is not None
    hosted.report(order)
    (item,) = hosted.told(HostOffered)
    ((_, event, _),) = Book(BLOCK, delay=1).translate(item)
    assert isinstance(event, Retained)
    assert (event.tier, event.session, event.tenant) == ("host", "talk", tag)
