"""Which data plane two engines use: measured on the way of a first pull, and told by the ledger."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import Pair, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Recorded, of

from kvferry.core.events import LinkProbed, Requested, Transferred

BLOCK = 32

pytestmark = pytest.mark.engine


def test_a_first_pull_measures_the_data_planes_and_the_ledger_says_which_is_used_and_why(
    pair: Pair, reference: EngineProcess
) -> None:
    text = prompt(71, 1000)
    first = pair.p0.run("choice-p", text, tokens=1)
    answer = pair.d0.run("choice-d", text, tokens=20, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 1000 // BLOCK * BLOCK
    assert answer.tokens == reference.run("choice", text, tokens=20).tokens

    def measured(seen: list[Recorded]) -> list[Recorded]:
        probes = [r for r in seen if r.node == "d0" and isinstance(r.event, LinkProbed)]
        return [r for r in probes if r.event.peer == "p0" and r.event.gb_per_s]

    def told(seen: list[Recorded]) -> list[str]:
        """Transfers that were measured on the way."""
        return [r.cause for r in measured(seen) if of(seen, Transferred, transfer=r.cause)]

    seen = pair.plane.wait_for(told, "a transfer that was measured on the way")
    transfer = told(seen)[-1]
    events = [r.event for r in measured(seen) if r.cause == transfer]
    # Where the kernel lets no process read another one's memory, tcp is measured alone.
    assert "tcp" in {one.backend for one in events}
    (chosen,) = [one for one in events if one.why]
    (moved,) = of(seen, Transferred, transfer=transfer)
    assert moved.backend == chosen.backend

    (asked,) = of(seen, Requested, transfer=transfer)
    story = pair.plane.cli("explain", asked.request).stdout
    assert f"reads from p0 over {chosen.backend} from now on: {chosen.why}" in story
    status = pair.plane.cli("status", "--json")
    (space,) = json.loads(status.stdout)["spaces"].values()
    pair_used = {one["pair"]: one["backend"] for one in space["backends"]}
    assert pair_used["p0>d0"] == chosen.backend
