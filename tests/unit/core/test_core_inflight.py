"""What moves now, and whether the next transfer begins beside it or waits."""

from __future__ import annotations

import random

import msgspec
import pytest
from tests.unit.core.fork import BLOCK, Burst

from kvferry.core.admission import SOURCE_FLOWS_MAX, TARGET_FLOWS_MAX, WAITED_MS_MAX
from kvferry.core.inflight import OPEN_MS_MAX, PROMISED_MS_MAX, Flow, InFlight, queue_ms
from kvferry.core.planning import Holder, Need, Planned, plan_prefix, promised
from kvferry.ids import SHORT_BYTES


def flow(source: str = "a", target: str = "b", **more: object) -> Flow:
    given: dict[str, object] = {"begun_ms": 0.0, "service_ms": 100.0, "request": "r", **more}
    return Flow(source=source, target=target, **given)  # type: ignore[arg-type]


def test_flows_are_found_by_their_ends_and_by_what_they_bring() -> None:
    moves = InFlight()
    moves.begin("t1", flow(upto=b"x" * 8))
    moves.begin("t2", flow(target="c", request="q"))
    assert [len(moves.out_of("a", 1.0)), len(moves.into("b", 1.0))] == [2, 1]
    assert [one.target for one in moves.bringing(b"x" * 8, 1.0)] == ["b"]
    moves.end("t1")
    moves.end("t1")
    assert [len(moves.out_of("a", 1.0)), len(moves.into("b", 1.0)), len(moves)] == [1, 0, 1]
    assert moves.bringing(b"x" * 8, 1.0) == []


def test_a_promise_ends_with_its_transfer_its_refusal_or_its_time() -> None:
    moves = InFlight()
    for end in (
        lambda: moves.begin("t", flow()),
        lambda: moves.decline("b", "r"),
        lambda: None,
    ):
        moves.promise(flow(promised=True))
        end()
        late = PROMISED_MS_MAX + 1.0
        assert [one.promised for one in moves.out_of("a", late) if one.promised] == []
        moves.end("t")
    assert len(moves) == 0


def test_what_is_left_of_a_transfer_shrinks_and_then_it_is_late() -> None:
    one = flow()
    assert one.left_ms(0.0) == 100.0
    assert one.left_ms(60.0) == 40.0
    assert one.late_ms(60.0) < 0 < one.late_ms(150.0)
    assert one.left_ms(1_000.0) == 500.0, "a late one is thought to stay late"
    assert one.left_ms(OPEN_MS_MAX + 1.0) == 0.0, "a stuck one takes nothing from others"


def test_a_queue_is_never_longer_than_the_transfer_itself_for_each_in_it() -> None:
    flows = [flow(), flow(service_ms=10.0)]
    assert queue_ms(flows, 50.0, 0.0) == 60.0
    assert queue_ms([], 50.0, 0.0) == 0.0


def test_flows_stay_consistent_whatever_comes() -> None:
    rng, moves = random.Random(1), InFlight()
    for step in range(3_000):
        key, request = f"t{rng.randrange(20)}", f"r{rng.randrange(20)}"
        one = flow(rng.choice("abc"), rng.choice("def"), request=request, upto=rng.randbytes(1))
        act = rng.randrange(4)
        if act == 0:
            moves.begin(key, one)
        elif act == 1:
            moves.promise(msgspec.structs.replace(one, promised=True, begun_ms=float(step)))
        elif act == 2:
            moves.end(key)
        else:
            moves.decline(one.target, request)
        out = sum(len(moves.out_of(name, 50.0)) for name in "abc")
        into = sum(len(moves.into(name, 50.0)) for name in "def")
        assert out == into == len(moves) == len(moves.keys())


class Asked:
    """One target and sources that hold everything that it asks for."""

    def __init__(self, sources: int = 1, **burst: object) -> None:
        self.burst = Burst(requests=0, nodes=sources + 1, **burst)  # type: ignore[arg-type]
        self.space, self.moves = self.burst.space, self.burst.moves
        names = [name for name in self.space.nodes if name != "n0"][:sources]
        self.holders = [
            Holder(node=self.space.nodes[name], blocks=self.burst.blocks) for name in names
        ]
        self.rng = random.Random(9)

    def need(self, request: str, *, target: str = "n0", waited_ms: float = 0.0) -> Need:
        chain = self.rng.randbytes(len(self.burst.chain))
        return Need(
            target=self.space.nodes[target],
            chain=chain,
            stride=8,
            request=request,
            waited_ms=waited_ms,
        )

    def ask(self, need: Need, now_ms: float = 0.0) -> Planned:
        planned = plan_prefix(self.space, self.moves, need, self.holders, now_ms=now_ms)
        if planned.chosen and not planned.wait_ms and not planned.shared:
            self.moves.promise(promised(need, planned.chosen[0], now_ms))
        elif planned.wait_ms:
            self.moves.wait(need.target.name, need.request, need.upto(), now_ms + planned.wait_ms)
        return planned


def test_an_empty_node_is_not_flooded() -> None:
    asked = Asked(sources=7, tokens=4_000)
    answers = [asked.ask(asked.need(f"r{number}")) for number in range(40)]
    begun = [one for one in answers if one.chosen and not one.wait_ms]
    assert 1 <= len(begun) <= TARGET_FLOWS_MAX
    assert len(asked.moves.into("n0", 0.0)) == len(begun)
    # The others wait as long as that is sooner than computing, and then compute.
    assert {one.miss for one in answers if not one.chosen} <= {"busy", "too_dear"}
    assert any(one.wait_ms for one in answers)


def test_no_more_is_on_its_way_to_a_node_than_half_its_memory() -> None:
    asked = Asked(sources=7, link_bytes_per_ms=1e9)
    asked.space.nodes["n0"].blocks = 3 * asked.burst.blocks
    assert asked.ask(asked.need("r1")).chosen
    second = asked.ask(asked.need("r2"))
    assert (second.chosen, second.miss) == ((), "busy")
    asked.space.nodes["n0"].blocks = 5 * asked.burst.blocks
    assert asked.ask(asked.need("r3")).miss == ""


def test_small_transfers_do_not_wait_for_each_other() -> None:
    asked = Asked(tokens=64 * BLOCK)
    for number, target in enumerate(("n0", "n1")):
        assert asked.ask(asked.need(f"r{number}", target=target)).wait_ms == 0.0


def test_a_source_sends_to_few_at_a_time_and_who_waited_long_goes_all_the_same() -> None:
    asked = Asked()
    asked.ask(asked.need("r0", target="n1"))
    waits = asked.ask(asked.need("r1"))
    assert waits.wait_ms > 0
    assert waits.chosen, "who cannot wait may go by it"
    assert asked.ask(asked.need("r1", waited_ms=WAITED_MS_MAX)).wait_ms == 0.0
    for number in range(SOURCE_FLOWS_MAX):
        asked.moves.begin(f"t{number}", flow("holder", f"x{number}", service_ms=400.0))
    full = asked.ask(asked.need("r2", waited_ms=WAITED_MS_MAX))
    assert (full.chosen, full.wait_ms, full.miss in ("busy", "too_dear")) == ((), 0.0, True)


def test_requests_of_one_node_for_one_prefix_are_one_need() -> None:
    asked = Asked()
    first = asked.need("r1")
    assert not asked.ask(first).shared
    second = asked.ask(msgspec.structs.replace(first, request="r2"))
    assert (second.shared, second.wait_ms, len(asked.moves)) == (True, 0.0, 1)
    again = asked.ask(first)
    assert (again.shared, again.wait_ms, len(asked.moves)) == (False, 0.0, 1)


def test_a_longer_prompt_is_another_need() -> None:
    asked = Asked(tokens=8_000)
    short = asked.need("r1")
    holder = msgspec.structs.replace(asked.holders[0], blocks=asked.burst.blocks // 2)
    asked.holders = [holder]
    asked.ask(short)
    asked.holders = [msgspec.structs.replace(holder, blocks=asked.burst.blocks)]
    other = msgspec.structs.replace(
        short, request="r2", chain=short.chain[:-SHORT_BYTES] + b"z" * 8
    )
    assert asked.ask(other).shared, "what is on its way is part of it"


@pytest.mark.parametrize("request_id", ["", "r1"])
def test_who_does_not_say_who_it_is_never_waits(request_id: str) -> None:
    asked = Asked()
    asked.ask(asked.need("r0", target="n1"))
    assert (asked.ask(asked.need(request_id)).wait_ms > 0) is bool(request_id)
