"""What is asserted of every answer that missed, and of the control that did not."""

from __future__ import annotations

from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.misses.scene import PROMPT, Scene, Told


def missed(scene: Scene, right: EngineProcess, text: list[int], answer: Answer, *miss: str) -> Told:
    """What is told of an answer that must be right although it pulled nothing."""
    name = answer.report["request"]
    assert answer.tokens == right.run(f"right-{name}", text).tokens
    assert answer.report["pulled"] == 0
    assert answer.report["miss"] in miss
    told = scene.tell(answer)
    assert told.story["found"]
    assert told.story["kind"] == "request"
    assert f"d0 answered a prompt of {PROMPT} tokens" in told.verdict
    return told


def pulled(
    scene: Scene, right: EngineProcess, text: list[int], answer: Answer, source: str = "p0"
) -> Told:
    """The control: the same without what made the other miss."""
    name = answer.report["request"]
    assert answer.tokens == right.run(f"right-{name}", text).tokens
    assert (answer.report["pulled"], answer.report["from"]) == (PROMPT, source)
    told = scene.tell(answer)
    assert told.story["causes"] == []
    assert f"{PROMPT} pulled from {source} over tcp" in told.verdict
    assert "why:" not in told.verdict
    assert "cure:" not in told.verdict
    return told
