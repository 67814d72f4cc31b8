"""Leases under a crowd, and what a client asks for, on small pools of real engines."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.bench.crowd import Crowd, spread_lengths
from tests.e2e.conftest import BLOCK, StartEngine, free_again, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded, of

from kvferry.core.events import Evicted, RequestEnded, Retained

BLOCKS = 200
POOL = {
    "kv_cache_memory_bytes": BLOCKS * BLOCK * 1024,
    "max_model_len": 1024,
    "prefix_caching_hash_algo": "sha256_cbor",  # Else requests with a salt are not shared.
}
TENANT, OTHER = "tenant-a", "tenant-b"
LEASE_MS = 2_000
TALKS, AT_ONCE, TURNS = 30, 12, 2

pytestmark = pytest.mark.engine


class Pair:
    """A prefill and a decode engine whose pools are soon full."""

    def __init__(self, start: StartEngine) -> None:
        self.p0 = start("p0", connector={"lease_ms": LEASE_MS}, **POOL)
        self.d0 = start("d0", connector={"lease_ms": LEASE_MS, "retain_max_ms": 90_000}, **POOL)


@pytest.fixture(scope="module")
def pair(plane: Plane, start_engine: StartEngine) -> Pair:
    made = Pair(start_engine)
    joined(made.p0, made.d0)
    for engine in (made.p0, made.d0):
        engine.ask("watch")
    return made


def flood(engine: EngineProcess, seed: int) -> None:
    """Other requests reuse everything that the cache may reuse."""
    for number in range(2 * BLOCKS // 20):
        engine.run(f"flood-{seed}-{number}", prompt(seed + number, 20 * BLOCK), tokens=1)


def test_a_crowd_on_small_pools_never_stands_still(pair: Pair, plane: Plane) -> None:
    crowd = Crowd(pair.p0, pair.d0)
    lengths = spread_lengths(TALKS, (100, 600), random.Random(1))
    seen = crowd.run(lengths, at_once=AT_ONCE, turns=TURNS, answer=24)
    assert seen.turns == TALKS * TURNS, "every request ended"
    for engine in (pair.p0, pair.d0):
        waits = engine.ask("waits")
        assert (waits.in_the_way, waits.preempted) == (0, 0), engine.name
    begun, ended = pair.p0.ask("leased")
    assert begun["handover"] > 0
    assert ended["pressure"] > 0, "the crowd needed what was leased"
    begun, _ = pair.d0.ask("leased")
    assert begun.keys() <= {"expected"}, "nobody reads a decode engine's blocks at once"

    def learned(seen: object) -> bool:
        spaces = [s for s in plane.state().spaces.values() if s.sessions.first.total]
        return any(s.sessions.first.total >= TALKS // 2 for s in spaces)

    plane.wait_for(learned, "gaps between turns in the fold")


@pytest.mark.parametrize("retain_ms", [60_000, 0])
def test_what_a_client_asks_to_retain_is_there_for_its_next_turn(
    pair: Pair, plane: Plane, retain_ms: int
) -> None:
    without_leases(pair.d0)
    first, session = prompt(5_000 + retain_ms, 10 * BLOCK), f"kept-{retain_ms}"
    wish = {"retain_ms": retain_ms} if retain_ms else {"end": True}
    asked = {"session": session, "turn": 1, "reuse": "off", **wish}
    said = pair.d0.run(f"{session}-1", first, tokens=8, kvferry=asked)
    flood(pair.d0, 6_000 + retain_ms)
    text = first + said.tokens + prompt(7_000, BLOCK)
    last = {"session": session, "turn": 2, "end": True, "reuse": "off"}
    again = pair.d0.run(f"{session}-2", text, tokens=4, kvferry=last)
    assert again.report["local"] == (10 * BLOCK if retain_ms else 0)
    if retain_ms:
        (lease,) = leased_on_request(plane, session)
        assert lease.ttl_ms == retain_ms
        plane.wait_for(
            lambda seen: of(seen, Evicted, offer=lease.offer, reason="session_end"),
            "the lease to end with its session",
        )
    ends = 1 if retain_ms else 2
    plane.wait_for(
        lambda seen: len(of(seen, RequestEnded, session=session, session_over=True)) == ends,
        "the last turn",
    )
    assert all(session not in s.sessions.open for s in plane.state().spaces.values())


def test_nobody_retains_longer_than_allowed_nor_ends_another_tenant_s_session(
    pair: Pair, plane: Plane
) -> None:
    without_leases(pair.d0)
    asked = {"session": "mine", "turn": 1, "retain_ms": 3_600_000}
    pair.d0.run("mine-1", prompt(8_000, 4 * BLOCK), tokens=2, kvferry=asked, salt=TENANT)
    (lease,) = leased_on_request(plane, "mine")
    assert lease.ttl_ms == 90_000
    last = {"session": "mine", "turn": 2, "end": True}
    pair.d0.run("theirs", prompt(8_001, 5), tokens=2, kvferry=last, salt=OTHER)
    pair.d0.until("waiting", lambda left: left == 0)
    assert not of(plane.events(), Evicted, offer=lease.offer)
    pair.d0.run("mine-2", prompt(8_002, 5), tokens=2, kvferry=last, salt=TENANT)
    plane.wait_for(
        lambda seen: of(seen, Evicted, offer=lease.offer, reason="session_end"), "its own end"
    )


def test_what_an_operator_sets_is_followed_while_the_engine_runs(pair: Pair, plane: Plane) -> None:
    without_leases(pair.d0)
    asked = {"session": "steered", "turn": 1, "retain_ms": 60_000}
    pair.d0.run("steered", prompt(8_500, 4 * BLOCK), tokens=2, kvferry=asked)
    (lease,) = leased_on_request(plane, "steered")
    numbers = itertools.count()

    def again(retain_ms: int = 0) -> None:
        """Another request: an engine follows a policy with its next step."""
        number = next(numbers)
        wish = {"session": f"steered-{number}", "turn": 1, "retain_ms": retain_ms}
        text = prompt(8_600 + number, 2 * BLOCK)
        pair.d0.run(f"steered-{number}", text, tokens=2, kvferry=wish)

    def ended(seen: list[Recorded]) -> object:
        again()
        return of(seen, Evicted, offer=lease.offer, reason="policy")

    def shorter(seen: list[Recorded]) -> object:
        again(60_000)
        return of(seen, Retained, tier="hbm", why="retain", ttl_ms=5_000)

    steer(plane, "--lease-budget", "0")
    plane.wait_for(ended, "the lease to end with its budget")
    assert pair.d0.ask("leases") == 0
    steer(plane, "--lease-budget", "default", "--retain-max", "5")
    plane.wait_for(shorter, "a lease for no longer than may be asked for now")
    steer(plane, "--retain-max", "default")


def steer(plane: Plane, *settings: str) -> None:
    """Set how d0 keeps."""
    done = plane.cli("policy", "--node", "d0", *settings)
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_reset_ends_every_lease_and_the_books_balance(pair: Pair, plane: Plane) -> None:
    without_leases(pair.d0)
    asked = {"session": "reset", "turn": 1, "retain_ms": 60_000}
    pair.d0.run("reset-1", prompt(9_000, 4 * BLOCK), tokens=2, kvferry=asked)
    (lease,) = leased_on_request(plane, "reset")
    pair.d0.ask("reset")
    assert pair.d0.ask("leases") == 0
    plane.wait_for(
        lambda seen: of(seen, Evicted, offer=lease.offer, reason="cleared"), "the lease to end"
    )
    for engine in (pair.p0, pair.d0):
        without_leases(engine)
    plane.wait_for(
        lambda seen: (
            {event.offer for event in of(seen, Retained, tier="hbm")}
            <= {event.offer for event in of(seen, Evicted, keep=0)}
        ),
        "every lease to end",
    )
    check(plane, (pair.p0, pair.d0))


def without_leases(engine: EngineProcess) -> None:
    """Wait until the leases of earlier tests have expired: they may be worth more."""
    free_again(engine, BLOCKS - 1, LEASE_MS / 1000 + 60)


def leased_on_request(plane: Plane, session: str) -> list[Retained]:
    """The leases that a client asked for, once they are in the ledger."""
    asked = {"why": "retain", "session": session}
    seen = plane.wait_for(lambda seen: of(seen, Retained, **asked), f"a lease for {session}")
    return of(seen, Retained, **asked)
