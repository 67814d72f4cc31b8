"""vLLM's default flags: what is shared, what is not, and who says so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Requested, RequestEnded, Retained

PROMPT = 1000
BLOCK = 128
"""vLLM's default on the CPU."""
CURE = "use --prefix-caching-hash-algo sha256_cbor on every engine"

pytestmark = pytest.mark.engine


class Pair:
    def __init__(self, source: EngineProcess, target: EngineProcess) -> None:
        self.source, self.target = source, target


@pytest.fixture(scope="module")
def pair(start_engine: StartEngine) -> Pair:
    defaults = {"block_size": None, "max_num_batched_tokens": None, "max_num_seqs": None}
    source, target = start_engine("source", **defaults), start_engine("target", **defaults)
    joined(source, target)
    return Pair(source, target)


def test_plain_requests_are_shared_by_hint(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(1, PROMPT)
    first = pair.source.run("hint-s", text, tokens=24)
    answer = pair.target.run("hint-t", text, tokens=24, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == PROMPT // BLOCK * BLOCK
    assert answer.tokens == first.tokens == reference.run("hint", text, tokens=24).tokens


def test_plain_requests_are_shared_by_plan(
    pair: Pair, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(2, PROMPT)
    first = pair.source.run("plan-s", text, tokens=2)
    plane.wait_for(lambda seen: of(seen, Retained, offer=first.hint["offer"]), "the offer")
    plane.wait_projected()
    answer = pair.target.run("plan-t", text, tokens=24)
    assert (answer.report["pulled"], answer.report["from"]) == (PROMPT // BLOCK * BLOCK, "source")
    assert answer.tokens == reference.run("plan", text, tokens=24).tokens


def test_salted_requests_are_not_shared(pair: Pair, reference: EngineProcess, plane: Plane) -> None:
    text = prompt(3, PROMPT)
    plain = pair.source.run("salt-plain", text, tokens=2)
    first = pair.source.run("salt-s", text, tokens=2, salt="tenant")
    assert first.hint is None
    expected = reference.run("salt", text, tokens=24).tokens
    for number, kvferry in enumerate([None, {"hint": plain.hint}]):
        answer = pair.target.run(
            f"salt-t{number}", text, tokens=24, salt=f"tenant{number}", kvferry=kvferry
        )
        assert (answer.report["pulled"], answer.report["miss"]) == (0, "unshareable")
        assert answer.tokens == expected
    names = {"salt-s", "salt-t0", "salt-t1"}
    seen = plane.wait_for(
        lambda seen: names <= {e.request.rpartition("-")[0] for e in of(seen, RequestEnded)},
        "the ends of the salted requests",
    )
    assert len(of(seen, Requested, miss="unshareable")) == 3


def test_status_says_so_with_the_cure(pair: Pair, plane: Plane) -> None:
    for engine in (pair.source, pair.target):
        engine.until("waiting", lambda left: left == 0)
    plane.wait_projected()
    text = plane.cli("status")
    assert text.returncode == 0, text.stderr
    said = " ".join(text.stdout.split())
    assert "unshareable: " in said
    for name in ("source", "target"):
        assert f"warning of {name}: --prefix-caching-hash-algo sha256 is not" in said
    assert CURE in said
    document: dict[str, Any] = json.loads(plane.cli("status", "--json").stdout)
    (space,) = document["spaces"].values()
    (miss,) = [one for one in space["misses"] if one["cause"] == "unshareable"]
    assert miss["count"] == 3


def test_doctor_warns_of_the_hash_and_of_long_prefills(pair: Pair, plane: Plane) -> None:
    document: dict[str, Any] = json.loads(plane.cli("doctor", "--json").stdout)
    for name in ("source", "target"):
        warned = [
            one
            for one in document["checks"]
            if one["check"] == f"node {name}" and one["level"] == "warn"
        ]
        assert [one for one in warned if one["cure"] == CURE and "cache_salt" in one["text"]]
        assert [one for one in warned if "--long-prefill-token-threshold" in one["cure"]]
    assert document["ok"], [one for one in document["checks"] if one["level"] == "fail"]


def test_a_wrong_option_stops_the_engine_at_start_by_name(start_engine: StartEngine) -> None:
    engine = start_engine("typo", connector={"verfy": "full"})
    with pytest.raises(RuntimeError, match="unknown option 'verfy'; did you mean 'verify'"):
        engine.wait_ready()
