"""Of the nodes that hold a chain, one keeps it in its host tier."""

from __future__ import annotations

from collections import Counter

import pytest

from kvferry.core.retention import Retention
from kvferry.core.retention_actions import TO_HOST
from kvferry.core.retention_keeper import keeper, shares
from kvferry.core.retention_value import Chain, Memory

SESSIONS = [f"session {number}" for number in range(4_000)]


def test_the_order_in_which_holders_are_named_does_not_matter() -> None:
    for name in SESSIONS[:100]:
        assert keeper(name, {"p1": 5, "d1": 5}) == keeper(name, {"d1": 5, "p1": 5})


def test_each_node_keeps_in_proportion_to_its_host_tier() -> None:
    kept = Counter(keeper(name, {"small": 100, "large": 300}) for name in SESSIONS)
    assert kept["small"] / len(SESSIONS) == pytest.approx(0.25, abs=0.03)


def test_between_roles_a_session_is_kept_in_proportion_to_all_that_a_role_has() -> None:
    nodes = [*(f"p{n}" for n in range(6)), "d0", "d1"]
    share = shares(dict.fromkeys(nodes, 10), {node: node[0] for node in nodes})
    kept: Counter[str] = Counter()
    for number, name in enumerate(SESSIONS):
        holders = (f"p{number % 6}", f"d{number % 2}")
        kept[keeper(name, {node: share[node] for node in holders})] += 1
    for node in nodes:
        assert kept[node] / len(SESSIONS) == pytest.approx(1 / 8, abs=0.03)
    alone = Counter(keeper(name, {"p0": 10, "d0": 10})[0] for name in SESSIONS)
    assert alone["d"] / len(SESSIONS) == pytest.approx(1 / 2, abs=0.03), "without roles"


def test_a_node_without_a_role_or_a_host_tier_has_the_share_of_its_own() -> None:
    sizes = {"a": 3, "b": 4, "p0": 5, "p1": 6, "p2": 0}
    roles = {"p0": "prefill", "p1": "prefill", "p2": "prefill"}
    assert shares(sizes, roles) == {"a": 3, "b": 4, "p0": 11, "p1": 11, "p2": 0}


def test_a_node_that_comes_takes_only_what_becomes_its_own() -> None:
    before = {name: keeper(name, {"p1": 10, "d1": 10}) for name in SESSIONS}
    after = {name: keeper(name, {"p1": 10, "d1": 10, "d2": 10}) for name in SESSIONS}
    moved = {name for name in SESSIONS if before[name] != after[name]}
    assert moved
    assert {after[name] for name in moved} == {"d2"}


def test_without_a_host_tier_nobody_keeps() -> None:
    assert keeper("s", {"p1": 0, "d1": 7}) == "d1"
    assert keeper("s", {"p1": 0, "d1": 0}) == ""
    assert keeper("s", {}) == ""


def copied(*, read: bool, kept_there: bool) -> bool:
    """Whether a chain is copied to the host tier once the cache is about to reuse it."""
    retention = Retention()
    memory = Memory(free=50, budget=10, watermark=5, per_s=1.0, host_budget=100)
    chain = Chain(key="turn", blocks=tuple(range(8)), bytes=8_000, saved_ms=80.0, session="s")
    retention.offered(0.0, chain, memory)
    if read:
        retention.read("turn", kept_there=kept_there)
    memory.handed_out = 40.0
    return any(action.act == TO_HOST for action in retention.sweep(1.0, memory))


def test_what_another_node_keeps_is_not_copied_here() -> None:
    assert copied(read=False, kept_there=False)
    assert copied(read=True, kept_there=False)
    assert not copied(read=True, kept_there=True)


def test_a_copy_that_another_node_has_read_gives_way_first() -> None:
    retention = Retention()
    memory = Memory(free=50, budget=10, watermark=5, per_s=1.0, host_budget=16)
    for key, begin in (("read", 0), ("unread", 8), ("new", 16)):
        blocks = tuple(range(begin, begin + 8))
        chain = Chain(key=key, blocks=blocks, bytes=8_000, saved_ms=80.0, session=key)
        retention.offered(0.0, chain, memory)
        if key != "new":
            memory.handed_out += 40.0
            assert [a.chain for a in retention.sweep(1.0, memory)] == [key]
            retention.moved(1.0, key, whole=True)
    retention.read("read")
    memory.handed_out += 40.0
    assert [(a.act, a.chain) for a in retention.sweep(1.0, memory)] == [
        ("end", "read"),
        ("to_host", "new"),
    ]
