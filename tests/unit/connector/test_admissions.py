"""Leases make room ahead of time for requests that the connector is not asked about again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.unit.connector.support import tracked
from tests.unit.connector.test_exports import USABLE, Engine
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from kvferry_connectors.vllm.admissions import Admissions
from kvferry_connectors.vllm.items import Leased, LeaseEnded

BLOCK = 32


def request(name: str, tokens: int, computed: int) -> Any:
    return SimpleNamespace(request_id=name, num_tokens=tokens, num_computed_tokens=computed)


def test_a_request_needs_its_tail_until_its_prompt_is_computed() -> None:
    admissions = Admissions(BLOCK)
    loading, chunked = request("a", 10 * BLOCK + 5, 8 * BLOCK), request("b", 6 * BLOCK, 2 * BLOCK)
    for one in (loading, chunked):
        admissions.allocated(one, tracked(one.request_id, []))
    assert admissions.needed() == 3 + 5
    assert admissions.needed(but="a") == 5
    loading.num_computed_tokens = loading.num_tokens
    assert admissions.needed() == 5
    admissions.gone("b")
    assert admissions.needed() == 0


def test_a_fully_covered_prompt_needs_nothing_more() -> None:
    admissions = Admissions(BLOCK)
    admissions.allocated(request("a", 4 * BLOCK, 4 * BLOCK), tracked("a", []))
    assert admissions.needed() == 0


def test_who_is_scheduled_computes_and_who_waits_for_a_load_does_not() -> None:
    admissions = Admissions(BLOCK)
    one, two = tracked("a", []), tracked("b", [])
    requests = {"a": one, "b": two}
    for name in requests:
        admissions.allocated(request(name, 100, 0), requests[name])
    new = SimpleNamespace(req_id="a", num_computed_tokens=64)
    cached = SimpleNamespace(resumed_req_ids={"b"})
    output = SimpleNamespace(scheduled_new_reqs=[new], scheduled_cached_reqs=cached)
    admissions.scheduled(output, requests)
    assert (one.computing, two.computing) == (True, True)
    assert one.local_tokens == 64, "another connector loaded these"
    admissions.allocated(request("a", 100, 0), one)
    assert not one.computing, "it was preempted and has its blocks anew"
    admissions.scheduled(output, requests)
    assert one.local_tokens == 64


def test_each_step_keeps_free_what_is_about_to_be_allocated() -> None:
    engine = Engine()
    engine.serve("a", 8, lease=True)
    engine.serve("b", 8, lease=True)
    engine.exports.each_step(engine.free - 3)
    assert len(engine.handed(LeaseEnded)) == 0
    engine.exports.each_step(engine.free)
    assert {item.reason for item in engine.handed(LeaseEnded)} == {"pressure"}
    assert engine.free >= USABLE - 8


def test_what_is_reserved_for_others_stays_free() -> None:
    engine = Engine()
    engine.serve("a", 8, lease=True)
    free = engine.free
    engine.exports.room_for(free - 5, (), 2)
    assert engine.free == free
    engine.exports.room_for(free - 5, (), 3)
    assert engine.free == USABLE


def cached(engine: Engine, hashes: list[bytes]) -> None:
    """Enter the chain into the engine's own prefix cache, under the blocks that are offered."""
    for chain_hash in hashes:
        block = next(i for i, h in engine.exports._watched.items() if h == chain_hash)
        engine.pool._insert_block_hash(
            make_block_hash_with_group_id(chain_hash, 0),  # type: ignore[arg-type]
            engine.pool.blocks[block],
            num_tokens=BLOCK,
        )


def test_a_local_prefix_that_is_leased_needs_no_room() -> None:
    engine = Engine()
    _, hashes = engine.serve("a", 8, lease=True)
    cached(engine, hashes)
    need = engine.free - 3 + len(hashes)  # All that is free but the watermark, and the prefix.
    engine.exports.room_for(need, hashes)
    assert len(engine.handed(Leased)) == 1
    assert engine.handed(LeaseEnded) == []


def test_a_local_prefix_that_nobody_holds_counts_as_free_and_is_needed() -> None:
    engine = Engine()
    engine.serve("a", 8, lease=True)
    _, hashes = engine.serve("b", 4)
    cached(engine, hashes)
    free = engine.free
    engine.exports.room_for(free - 2, hashes)
    assert engine.free == USABLE, "its own four blocks are among those that are free"
    assert [item.reason for item in engine.handed(LeaseEnded)] == ["pressure"]
