"""kvferry beside another connector under vLLM's MultiConnector, in both orders.

The other one is vLLM's ``ExampleConnector``, which keeps prompts in files: of those that vLLM
ships, the others need a GPU or a service.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import KEY, StartEngine, joined, prompt
from tests.e2e.conservation import check
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import PinEnded, RequestEnded, TransferFailed

pytestmark = pytest.mark.engine


class Fleet:
    """``m0``: kvferry first; ``m1``: the other first; ``m2``: kvferry was not told the policy."""

    def __init__(self, start: StartEngine, plane: Plane, folder: Path) -> None:
        def multi(name: str, *, first: bool, told: bool) -> EngineProcess:
            ours = {
                "kv_connector": "KVFerryConnector",
                "kv_connector_module_path": "kvferry_connectors.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "node": name,
                    "nats_url": plane.url,
                    "key": KEY,
                    "verify": "full",
                    "plan_deadline_ms": 15_000,
                    "pin_timeout_ms": 15_000,
                    "parent_load_failure_policy": "recompute" if told else "",
                },
            }
            other = {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": str(folder / name)},
            }
            config: dict[str, Any] = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute" if told else "fail",
                "kv_connector_extra_config": {
                    "connectors": [ours, other] if first else [other, ours]
                },
            }
            return start(name, kv_transfer_config=config)

        self.p0 = start("p0")
        self.m0 = multi("m0", first=True, told=True)
        self.m1 = multi("m1", first=False, told=True)
        self.m2 = multi("m2", first=True, told=False)
        self.multis = {"m0": self.m0, "m1": self.m1, "m2": self.m2}


@pytest.fixture(scope="module")
def fleet(
    plane: Plane, start_engine: StartEngine, tmp_path_factory: pytest.TempPathFactory
) -> Fleet:
    made = Fleet(start_engine, plane, tmp_path_factory.mktemp("files"))
    joined(made.p0)
    for number, engine in enumerate(made.multis.values()):
        engine.wait_ready()
        # Under MultiConnector a rank can only introduce itself in a step.
        assert engine.ask("joined") is False
        engine.run("hello", prompt(90_000 + number, 40), tokens=2)
    joined(*made.multis.values())
    return made


@pytest.mark.parametrize("name", ["m0", "m1"])
def test_told_of_the_policy_it_pulls_in_either_order(
    fleet: Fleet, reference: EngineProcess, name: str
) -> None:
    text = prompt(91_000 + ord(name[1]), 700)
    first = fleet.p0.run(f"pull-{name}-p", text, tokens=1)
    answer = fleet.multis[name].run(f"pull-{name}", text, tokens=8, kvferry={"hint": first.hint})
    assert (answer.report["pulled"], answer.report["from"]) == (672, "p0")
    assert answer.tokens == reference.run(f"pull-{name}", text, tokens=8).tokens


@pytest.mark.parametrize("name", ["m0", "m1", "m2"])
def test_what_nobody_holds_is_computed(fleet: Fleet, reference: EngineProcess, name: str) -> None:
    text = prompt(92_000 + ord(name[1]), 500)
    answer = fleet.multis[name].run(f"none-{name}", text, tokens=8)
    assert (answer.report["pulled"], answer.report["local"]) == (0, 0)
    assert answer.tokens == reference.run(f"none-{name}", text, tokens=8).tokens


@pytest.mark.parametrize("name", ["m0", "m1", "m2"])
def test_it_exports_in_either_order(fleet: Fleet, reference: EngineProcess, name: str) -> None:
    text = prompt(93_000 + ord(name[1]), 500)
    answer = fleet.multis[name].run(f"out-{name}", text, tokens=8)
    first = fleet.p0.run(f"out-{name}-p", text, tokens=8, kvferry={"hint": answer.hint})
    assert (first.report["pulled"], first.report["from"]) == (480, name)
    assert first.tokens == reference.run(f"out-{name}", text, tokens=8).tokens


@pytest.mark.parametrize("name", ["m0", "m1"])
def test_the_first_child_that_has_it_loads_and_the_other_claims_nothing(
    fleet: Fleet, reference: EngineProcess, plane: Plane, name: str
) -> None:
    engine, text = fleet.multis[name], prompt(94_000 + ord(name[1]), 700)
    engine.run(f"both-{name}-1", text, tokens=2)  # Now the other connector has it in its files.
    engine.ask("reset")
    assert engine.ask("reset") is True
    first = fleet.p0.run(f"both-{name}-p", text, tokens=1)
    answer = engine.run(f"both-{name}-2", text, tokens=8, kvferry={"hint": first.hint})
    ours = name == "m0"
    assert answer.report["pulled"] == (672 if ours else 0)
    assert answer.tokens == reference.run(f"both-{name}", text, tokens=8).tokens
    assert engine.ask("open") == 0
    assert engine.ask("reserved") == 0
    request = answer.report["request"]
    seen = plane.wait_for(lambda seen: of(seen, RequestEnded, request=request), "its end")
    (ended,) = of(seen, RequestEnded, request=request)
    # What the other one loaded was not computed, and was not pulled by us.
    assert (ended.local_tokens, ended.computed_tokens) == ((0, 28) if ours else (672, 28))
    fleet.p0.until("pins", lambda count: count == 0)
    if not ours:
        plane.wait_for(lambda seen: of(seen, PinEnded, target=name, how="abort"), "the pin's end")


def test_untold_it_only_exports_and_says_so(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(95_000, 500)
    first = fleet.p0.run("untold-p", text, tokens=1)
    answer = fleet.m2.run("untold", text, tokens=8, kvferry={"hint": first.hint})
    assert (answer.report["pulled"], answer.report["miss"]) == (0, "policy_unset")
    assert answer.tokens == reference.run("untold", text, tokens=8).tokens
    done = plane.cli("status", "--json")
    document = json.loads(done.stdout)
    warnings = {
        node["name"]: " ".join(node["warnings"])
        for space in document["spaces"].values()
        for node in space["nodes"]
    }
    assert "parent_load_failure_policy=recompute" in warnings["m2"]
    assert "MultiConnector" not in warnings["m0"] + warnings["m1"] + warnings["p0"]


def test_a_failed_load_is_recomputed_by_the_parents_policy(
    fleet: Fleet, reference: EngineProcess, plane: Plane
) -> None:
    text = prompt(96_000, 700)
    first = fleet.p0.run("fail-p", text, tokens=4)
    fleet.p0.ask("reset")
    first = fleet.p0.run("fail-p2", text, tokens=4)  # Not leased: the reset below succeeds.
    fleet.m0.hold(True)
    fleet.m0.add("fail-m", text, tokens=8, kvferry={"hint": first.hint})
    fleet.p0.until("pins", lambda count: count == 1)
    assert fleet.p0.ask("reset") is True
    fleet.m0.hold(False)
    answer = fleet.m0.answer("fail-m")
    assert (answer.reason, answer.report["pulled"]) == ("length", 0)
    assert answer.tokens == reference.run("fail", text, tokens=8).tokens
    plane.wait_for(
        lambda seen: [
            f for f in of(seen, TransferFailed, reason="void") if f.request.startswith("fail-m")
        ],
        "the transfer to fail",
    )


def test_counts_agree_with_the_engines(fleet: Fleet, plane: Plane) -> None:
    facts = check(plane, (fleet.p0, *fleet.multis.values()))
    for name, engine in fleet.multis.items():
        ends = [r.event for r in facts if r.node == name and isinstance(r.event, RequestEnded)]
        sources = engine.ask("sources")
        computed = sources["vllm:prompt_tokens_by_source/local_compute"]
        if name != "m0":  # It counts the tokens of the failed load as loaded.
            assert computed == sum(end.computed_tokens for end in ends)
