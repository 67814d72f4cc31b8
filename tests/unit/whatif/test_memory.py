"""Simulated memory of an engine: what it remembers is bounded, and what is lost gives room."""

from __future__ import annotations

from tests.unit.daemon.support import SPACE

from kvferry.core.events import Requested
from kvferry.core.retention_value import Rules
from kvferry.core.state import NodeState, SpaceState
from kvferry.replay.nodes.leases import Left
from kvferry.replay.whatif import fleet as fleets
from kvferry.replay.whatif import memory
from kvferry.replay.whatif.fleet import Fleet
from kvferry.replay.whatif.lives import Life
from kvferry.replay.whatif.policy import Keeping, Policy

KEEPING = Keeping(
    blocks=64, lease_blocks=16, watermark_blocks=0, host_blocks=32, rules=Rules(lease_ms=30_000)
)


def fleet_of(*names: str) -> Fleet:
    made = Fleet(SpaceState(), Policy(), 1)
    for name in names:
        node = NodeState(name=name, space=SPACE, incarnation="i", epoch=1, block_size=16)
        made.joined(node, KEEPING)
    return made


def life(number: int, units: int) -> Life:
    chain = tuple(range(1_000 * number, 1_000 * number + units))
    asked = Requested(request=f"r{number}", wanted=units)
    return Life(key=(SPACE, "e0", asked.request), asked=asked, prompt=chain, whole=chain)


def test_an_engine_remembers_no_more_chains_than_it_may() -> None:
    fleet = fleet_of("e0")
    leases = fleet.engines["e0"].leases
    leases._chains_max = 2
    pool = fleet.engines["e0"].pool
    for number in range(1, 5):
        chain = tuple(range(100 * number, 100 * number + 8))
        pool.take(chain)
        pool.arrived(chain)
        leases.left(Left(chain=chain, session=f"s{number}", holders=("e0",)))
        pool.give_back(chain)
    assert list(leases._chains) == ["307", "407"]
    # All four are about to be reused: those that are forgotten are not copied, and nothing fails.
    pool.take(tuple(range(5_000, 5_040)))
    leases.room(40)
    fleet.go_on(10.0)
    assert leases.host.used <= 16
    assert memory.CHAINS_MAX > 3 * 4_096, "more than retention itself remembers"


def test_a_request_whose_end_is_lost_gives_its_blocks_back() -> None:
    fleet = fleet_of("e0")
    pool = fleet.engines["e0"].pool
    most, fleets.RUNNING_MAX = fleets.RUNNING_MAX, 2
    try:
        for number in range(1, 4):
            fleet.admitted(life(number, 16), "e0", "")
    finally:
        fleets.RUNNING_MAX = most
    assert pool.free == 64 - 2 * 16
    assert pool.ready(1_000)


def test_a_node_that_is_gone_holds_nothing_and_is_asked_for_nothing() -> None:
    fleet = fleet_of("e0", "e1")
    fleet.admitted(life(1, 16), "e0", "")
    assert fleet._shares == {"e0": 32, "e1": 32}
    fleet.gone("e0")
    assert (list(fleet.engines), list(fleet.view.nodes)) == (["e1"], ["e1"])
    assert fleet._shares == {"e1": 32}
    fleet.ended(life(1, 16), "e0", 1)
