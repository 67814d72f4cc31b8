"""An afternoon of one node, told so that a person can judge what the policy does."""

from __future__ import annotations

from functools import partial

from kvferry.core.retention import Retention
from kvferry.core.retention_actions import Action
from kvferry.core.retention_host import WINDOW_S
from kvferry.core.retention_value import Chain, Memory, Rules, expected_reuse

BLOCKS = 100
"""The node's pool; 30 of them may be leased, 5 must stay free."""


class Node:
    """The smallest node there can be: it believes every action and keeps the score."""

    def __init__(self, per_s: float, **rules: float) -> None:
        self.retention = Retention(Rules(**rules))  # type: ignore[arg-type]
        self.now = 0.0
        self.per_s = per_s
        self.free = BLOCKS
        self.host_budget = 0
        self.next_block = 0

    @property
    def memory(self) -> Memory:
        return Memory(
            free=self.free - self.retention.leased_blocks,
            budget=30,
            watermark=5,
            handed_out=self.now * self.per_s,
            per_s=self.per_s,
            host_budget=self.host_budget,
        )

    def finishes(self, key: str, blocks: int, covers: str = "", **told: object) -> list[str]:
        """A request ends and leaves a chain; one that covers another shares its blocks."""
        old = self.retention.find(covers)
        shared = old.blocks if old is not None else ()
        own = range(self.next_block, self.next_block + blocks - len(shared))
        self.next_block += len(own)
        chain = Chain(
            key=key,
            blocks=(*shared, *own),
            bytes=1000 * blocks,
            saved_ms=10.0 * blocks,
            session=str(told.pop("session", key)),
            ended_s=self.now,
            covers=(covers,) if covers else (),
            **told,  # type: ignore[arg-type]
        )
        return said(self.retention.offered(self.now, chain, self.memory))

    def until(self, now: float, pinned: frozenset[int] = frozenset()) -> list[str]:
        """Time passes, in steps of half a second."""
        heard: list[str] = []
        while self.now < now:
            self.now += 0.5
            did = said(self.retention.sweep(self.now, self.memory, lambda: pinned))
            heard += [f"{self.now:g}s {one}" for one in did]
        return heard


def said(actions: list[Action]) -> list[str]:
    return [
        f"{one.act} {one.chain} ({one.reason})" + (f" {one.ttl_ms / 1000:g}s" if one.ttl_ms else "")
        for one in actions
    ]


def test_an_idle_node_leaves_everything_to_its_cache() -> None:
    node = Node(per_s=0.0)
    assert node.finishes("a", 20) == []
    assert node.until(100) == []
    assert node.retention.leased_blocks == 0


def test_a_chain_is_leased_when_the_cache_is_about_to_lose_it() -> None:
    node = Node(per_s=5.0)
    assert node.finishes("a", 20) == [], "the cache keeps it for 20 s, that is long enough for now"
    heard = node.until(25)
    assert heard == ["19s lease a (expected) 30s"]
    assert node.retention.leased_blocks == 20
    # Renewed while its session may well come back, and given up in the end.
    later = node.until(3_000)
    assert later[0] == "39s renew a (expected) 30s"
    assert later[-1].endswith("end a (expired)")
    assert node.retention.leased_blocks == 0


def test_blocks_for_another_engine_are_leased_until_they_are_read() -> None:
    node = Node(per_s=5.0)
    assert node.finishes("a", 20, awaited=True) == ["lease a (handover) 30s"]
    node.retention.read("a")
    # Another node has it too: it is worth a tenth now, and goes as soon as another one is better.
    assert node.finishes("b", 20, awaited=True) == [
        "end a (pressure)",
        "lease b (handover) 30s",
    ]


def test_nobody_is_displaced_for_something_that_is_not_clearly_better() -> None:
    node = Node(per_s=5.0)
    node.finishes("a", 20, awaited=True)
    assert node.finishes("b", 20, awaited=True) == []


def test_a_longer_chain_takes_the_place_of_the_shorter_one() -> None:
    node = Node(per_s=5.0)
    node.finishes("turn1", 10, session="s", awaited=True)
    node.retention.read("turn1")
    assert node.finishes("turn2", 12, covers="turn1", session="s", awaited=True) == [
        "lease turn2 (handover) 30s",
        "end turn1 (superseded)",
    ]
    assert node.retention.leased_blocks == 12
    assert next(iter(node.retention.leases())).turns == 2


def test_what_a_client_asks_for_is_kept_and_ends_with_its_session() -> None:
    node = Node(per_s=5.0)
    assert node.finishes("a", 10, session="s", retain_until_s=120.0) == ["lease a (retain) 120s"]
    assert node.until(60) == []
    assert node.finishes("b", 12, covers="a", session="s") == [
        "lease b (retain) 60s",
        "end a (superseded)",
    ]
    assert said(node.retention.session_ended("other", node.memory)) == []
    assert said(node.retention.session_ended("s", node.memory)) == ["end b (session_end)"]
    assert node.until(300) == []


def test_no_request_has_its_chain_kept_for_longer_than_an_operator_lets_it() -> None:
    """What is beyond the bound is not asked for any more: no lease is renewed because of it."""
    node = Node(per_s=0.0, retain_max_ms=20_000)
    assert node.finishes("a", 10, session="s", retain_until_s=120.0) == ["lease a (retain) 20s"]
    assert node.until(120.0) == ["20s end a (expired)"]
    node.finishes("b", 10, session="t", retain_until_s=125.0)
    assert node.until(122.0) == []
    assert node.finishes("b", 10, session="t", retain_until_s=900.0) == ["renew b (retain) 20s"]
    assert node.until(200.0) == ["142s end b (expired)"]
    none = Node(per_s=0.0, retain_max_ms=0)
    assert none.finishes("a", 10, session="s", retain_until_s=120.0) == []
    assert none.until(130.0) == []


def test_running_requests_come_first() -> None:
    node = Node(per_s=5.0)
    node.finishes("cheap", 10, awaited=True)
    node.retention.read("cheap")
    node.finishes("dear", 10, awaited=True)
    node.free = 30  # The others run.
    assert node.until(0.5) == []
    node.free = 22  # Two blocks free beside the leases, where five must be.
    assert node.until(1.0) == ["1s end cheap (pressure)"]
    node.free = 10
    dear = frozenset(node.retention.find("dear").blocks)  # type: ignore[union-attr]
    assert node.until(1.5, pinned=dear) == [], "somebody reads it at this moment"
    assert node.until(2.0) == ["2s end dear (pressure)"]
    node.free = 4
    assert node.finishes("late", 10, awaited=True) == [], "no room for anybody"


def test_what_the_cache_will_lose_is_copied_to_the_host_in_time_where_there_is_one() -> None:
    for host_budget, copied in ((0, []), (40, ["15s to_host b (expected)"])):
        node = Node(per_s=5.0)
        node.host_budget = host_budget
        node.finishes("b", 20)
        assert node.until(16) == copied, "a quarter of what the cache has free is left"
        assert said(node.retention.moved(16, "b", whole=True)) == []
        assert node.retention.host.blocks == (20 if host_budget else 0)
        leased = [] if host_budget else ["19s lease b (expected) 30s"]
        assert node.until(20) == leased, "what is in the host tier needs no lease"


def test_a_copy_that_did_not_get_whole_counts_for_nothing() -> None:
    node = Node(per_s=5.0)
    node.host_budget = 40
    node.finishes("b", 20)
    node.until(16)
    assert said(node.retention.moved(16, "b", whole=False)) == []
    assert node.retention.host.blocks == 0
    assert node.until(20) == ["19s lease b (expected) 30s"]


def test_a_full_host_tier_gives_its_place_to_what_is_worth_more() -> None:
    node = Node(per_s=5.0)
    node.host_budget = 30
    node.finishes("old", 20)
    node.until(16)
    node.retention.read("old")  # Another node has it too, so that it is worth less.
    node.retention.moved(16, "old", whole=True)
    node.finishes("new", 20)
    assert node.until(34) == ["31s end old (pressure)", "31s to_host new (expected)"]


def test_a_free_place_in_the_host_tier_is_for_whoever_may_come_back_at_all() -> None:
    for free, copied in ((20, ["375s to_host b (expected)"]), (0, [])):
        node = Node(per_s=0.2)
        node.host_budget = 20 + free
        node.finishes("a", 20)
        a = node.retention.find("a")
        node.finishes("b", 20)
        b = node.retention.find("b")
        assert a is not None
        assert b is not None
        node.retention.host.put(0.0, a)
        assert [one for one in node.until(400) if "to_host" in one] == copied
        unlikely = expected_reuse(b, 375.0, 0.0, WINDOW_S, node.retention.gaps)
        assert 0.0 < unlikely < Rules().reuse_min, "else this test says nothing"


def test_what_is_used_again_makes_those_behind_it_move_up() -> None:
    for again, at in (("", "15s"), ("first", "11s")):
        node = Node(per_s=5.0)
        node.host_budget = 40
        node.free = BLOCKS - 20
        node.finishes("first", 20)
        node.free = BLOCKS  # Those of the first are free now, and stand before the next one's.
        node.finishes("behind", 10)
        node.now = 1.0
        if again:
            node.finishes("longer", 25, covers=again)
        heard = node.until(16)
        assert f"{at} to_host behind (expected)" in heard


def test_what_is_read_when_its_session_ends_is_read_to_its_end() -> None:
    node = Node(per_s=5.0)
    node.finishes("a", 10, session="s", retain_until_s=120.0)
    read = frozenset(node.retention.find("a").blocks)  # type: ignore[union-attr]
    assert said(node.retention.session_ended("s", node.memory, lambda: read)) == []
    assert node.until(1.0, pinned=read) == []
    assert node.until(1.5) == ["1.5s end a (session_end)"]


def test_what_a_longer_lease_does_not_keep_is_read_to_its_end() -> None:
    """Two requests computed the same side by side, and so the longer chain has a twin of the
    shorter one's last block: a reader of the shorter one goes on reading what its lease holds."""
    for twins, read_on in ((0, False), (1, True)):
        node = Node(per_s=5.0)
        assert node.finishes("short", 6, awaited=True) == ["lease short (handover) 30s"]
        short = node.retention.find("short")
        assert short is not None
        pinned = frozenset(short.blocks)
        longer = Chain(
            key="longer",
            blocks=(*short.blocks[: 6 - twins], *range(50, 54 + twins)),
            bytes=10_000,
            saved_ms=100.0,
            covers=("short",),
            awaited=True,
        )
        heard = said(node.retention.offered(0.0, longer, node.memory, partial(frozenset, pinned)))
        ends = ["end short (superseded)"]
        assert heard == ["lease longer (handover) 30s"] + ([] if read_on else ends)
        assert node.until(1.0, pinned=pinned) == []
        assert node.until(1.5) == (["1.5s end short (superseded)"] if read_on else [])
        assert node.retention.leased_blocks == 10


def test_leases_take_only_what_is_spare_beside_running_requests() -> None:
    for free, expected in ((31, ["a", "b"]), (20, ["a"]), (12, [])):
        node = Node(per_s=5.0)
        node.finishes("a", 10)
        node.finishes("b", 10)
        assert node.until(18.5) == []
        node.free = free  # Others run. Five must stay free, whatever is leased.
        assert node.until(19.0) == [f"19s lease {one} (expected) 30s" for one in expected]
