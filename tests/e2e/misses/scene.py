"""A fleet that misses on purpose, and what ``kvferry explain`` says of each miss."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tests.e2e.conftest import BLOCK, StartEngine, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, Recorded, of
from tests.e2e.relay import Relay

from kvferry.core.events import Evicted, PinEnded, Requested, RequestEnded, Retained, Transferred

PROMPT = 640
BLOCKS = PROMPT // BLOCK
POOL_BLOCKS = 64
SMALL = {"kv_cache_memory_bytes": POOL_BLOCKS * BLOCK * 1024, "max_model_len": 1536}
HASHES = {"prefix_caching_hash_algo": "sha256_cbor"}
"""Else requests with a ``cache_salt`` are not shared."""
PLAN_MS = 8_000
FILLER, FILLERS = 1_400, 3
"""Tokens and prompts that together take more than a small pool."""
PATIENCE_S = 60.0


class Told(NamedTuple):
    """What the command says of one request."""

    text: str
    story: dict[str, Any]

    @property
    def cause(self) -> dict[str, Any]:
        """The one cause of its miss."""
        (only,) = self.story["causes"]
        return dict(only)

    @property
    def verdict(self) -> str:
        """The lines that say what became of it, and why."""
        return self.text.rpartition("\n\n")[2]


class Scene:
    """p0 and p1 have small pools and serve through relays; d0 wants what they have; the KV of
    ``far`` is not interchangeable with theirs."""

    def __init__(self, plane: Plane, start: StartEngine, relays: tuple[Relay, Relay]) -> None:
        self.plane = plane
        self.relay, self.other_relay = relays
        source: dict[str, Any] = {"lease_ms": 2_000, "lease_budget": 0.5}
        args: dict[str, Any] = {**SMALL, **HASHES}
        self.p0 = start("p0", connector={**source, **self.relay.connector_options()}, **args)
        self.p1 = start("p1", connector={**source, **self.other_relay.connector_options()}, **args)
        quiet = {"plan_deadline_ms": PLAN_MS, "lease_budget": 0.0}
        self.d0 = start("d0", connector=quiet, **HASHES)
        self.far = start("far", dtype="bfloat16", **HASHES)

    # --- what is done -----------------------------------------------------------------------

    def hold(
        self,
        name: str,
        text: list[int],
        *,
        source: EngineProcess | None = None,
        salt: str | None = None,
        **kvferry: Any,
    ) -> Answer:
        """Have a source answer a prompt; returns once the ledger has its offer."""
        answer = (source or self.p0).run(name, text, tokens=2, kvferry=kvferry or None, salt=salt)
        offer = answer.hint["offer"]
        self.plane.wait_for(lambda seen: of(seen, Retained, offer=offer), f"the offer of {name}")
        return answer

    def planned(self, name: str, text: list[int]) -> Answer:
        """d0's answer by a plan; asked again while it does not know a new coordinator yet, or goes
        by what the one before had told it of what is held."""
        deadline = time.monotonic() + PATIENCE_S
        for number in itertools.count():
            self.d0.ask("reset")
            answer = self.d0.run(f"{name}-{number}", text)
            if answer.report["miss"] not in ("no_coordinator", "plan_late", "nothing_held"):
                return answer
            assert time.monotonic() < deadline, "no coordinator answers"
        raise AssertionError

    def flood(self, seed: int) -> None:
        """Have p0 compute other prompts until nothing of its cache is left."""
        for number in range(FILLERS):
            self.p0.run(f"flood-{seed}-{number}", prompt(seed + number, FILLER), tokens=2)

    def lease_over(self, session: str) -> Recorded:
        """Wait until the session's lease on p0 has ended by its time; an idle engine ends none."""
        seen = self.plane.wait_for(
            lambda seen: of(seen, Retained, tier="hbm", session=session), f"a lease of {session}"
        )
        lease = of(seen, Retained, tier="hbm", session=session)[-1].offer
        deadline = time.monotonic() + PATIENCE_S
        for number in itertools.count(880_000):
            if not self.p0.ask("leases"):
                return self.gone(lease, "expired")
            assert time.monotonic() < deadline, f"the lease of {session} stands"
            self.p0.run(f"step-{number}", prompt(number, 5), tokens=2)
        raise AssertionError

    def gone(self, offer: str, reason: str) -> Recorded:
        """The event that took the last block of an offer away, or ended a lease."""

        def ends(seen: list[Recorded]) -> list[Recorded]:
            return [
                one
                for one in seen
                if isinstance(one.event, Evicted)
                and (one.event.offer, one.event.keep, one.event.reason) == (offer, 0, reason)
            ]

        return ends(self.plane.wait_for(ends, f"the end of {offer} by {reason}"))[0]

    # --- what is said -----------------------------------------------------------------------

    def tell(self, answer: Answer) -> Told:
        """The command's text and JSON for a request that was answered."""
        request = answer.report["request"]
        self._whole(request)
        with ThreadPoolExecutor(2) as both:
            text = both.submit(self.explain, request)
            document = both.submit(self.explain, request, "--json")
            return Told(text.result(), json.loads(document.result()))

    def explain(self, *args: str) -> str:
        """What the command prints."""
        done = self.plane.cli("explain", *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def asked(self, answer: Answer) -> Recorded:
        """The ``requested`` event of a request that was told of."""
        request = answer.report["request"]
        (only,) = [
            one
            for one in self.plane.events()
            if isinstance(one.event, Requested) and one.event.request == request
        ]
        return only

    def _whole(self, request: str) -> None:
        """Wait for the end of a request, and of its source's pin."""

        def whole(seen: list[Recorded]) -> bool:
            # An offer follows its request's end, and may come with the next batch.
            offered = of(seen, Retained, request=request)
            moved = {one.transfer for one in of(seen, Transferred, request=request)}
            pins = {one.transfer for one in of(seen, PinEnded)}
            return bool(of(seen, RequestEnded, request=request) and offered) and moved <= pins

        self.plane.wait_for(whole, f"the end of {request}")
