"""Never to be shared: a prompt that departs, another tenant's, another space's."""

from __future__ import annotations

from tests.e2e.conftest import BLOCK, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.misses.scene import BLOCKS, PROMPT, Scene
from tests.e2e.misses.telling import missed, pulled

from kvferry.core.events import Requested


def diverged_at_a_token(scene: Scene, right: EngineProcess) -> None:
    text, at = prompt(1_700, PROMPT), 333
    held = scene.hold("div-p", text)
    scene.d0.run("div-own", text[:at] + prompt(1_701, 60), tokens=2)
    edited = text[:at] + prompt(1_702, PROMPT - at)
    shared = at // BLOCK * BLOCK
    answer = scene.d0.run("div-local", edited, kvferry={"hint": held.hint})
    told = missed(scene, right, edited, answer, f"diverged@{shared}")
    cause = told.cause
    assert (cause["how"], cause["token"], cause["blocks"]) == ("diverged", shared, shared // BLOCK)
    assert f"diverged at token {shared}: p0 offered {BLOCKS} blocks" in told.verdict
    assert f"of which the first {shared // BLOCK} are this prompt's" in told.verdict
    # Where the common part is pulled, the story says why the rest was not.
    at = 402
    edited = text[:at] + prompt(1_703, PROMPT - at)
    scene.d0.ask("reset")
    answer = scene.d0.run("div-part", edited, kvferry={"hint": held.hint})
    assert answer.tokens == right.run("div-part", edited).tokens
    shared = at // BLOCK * BLOCK
    assert answer.report["pulled"] == shared
    cause = (told := scene.tell(answer)).cause
    assert (cause["how"], cause["token"], cause["blocks"]) == ("diverged", shared, shared // BLOCK)
    assert f"{shared} pulled from p0" in told.verdict
    # From its first token on.
    edited = [text[0] + 1, *text[1:]]
    answer = scene.d0.run("div-first", edited, kvferry={"hint": held.hint})
    told = missed(scene, right, edited, answer, "not_offered")
    assert (told.cause["how"], told.cause["token"]) == ("diverged", 0)
    assert "diverged at token 0: the hint named p0's 20 blocks" in told.verdict


def refused_by_tenant(scene: Scene, right: EngineProcess) -> None:
    text, session = prompt(1_800, PROMPT), "s-tenant"
    held = scene.hold("tenant-p", text, salt="mine", session=session, turn=1)
    for way, given, miss in (
        ("hint", {"hint": held.hint}, "not_offered"),
        ("plan", {"session": session, "turn": 2}, "nothing_held"),
    ):
        answer = scene.d0.run(f"tenant-{way}", text, salt=f"theirs-{way}", kvferry=given)
        cause = (told := missed(scene, right, text, answer, miss)).cause
        assert (cause["how"], cause["reason"], cause["source"]) == ("refused", "tenant", "p0")
        assert "refused: another tenant's" in told.verdict
        assert "tenants are kept apart" in told.verdict
        tag = scene.asked(answer).event
        assert isinstance(tag, Requested)
        assert tag.tenant
        assert tag.tenant in told.verdict
    answer = scene.d0.run("tenant-own", text, salt="mine", kvferry={"hint": held.hint})
    pulled(scene, right, text, answer)


def refused_by_space(scene: Scene, right: EngineProcess) -> None:
    session = "s-space"
    text = prompt(1_900, PROMPT)
    held = scene.hold("space-p", text, source=scene.far, session=session, turn=1)
    for number, (given, miss) in enumerate(
        (({"hint": held.hint}, "space_mismatch"), ({"session": session}, "nothing_held"))
    ):
        wanted = text if number == 0 else prompt(1_901, PROMPT)
        answer = scene.d0.run(f"space-{number}", wanted, kvferry=given)
        cause = (told := missed(scene, right, wanted, answer, miss)).cause
        assert (cause["how"], cause["reason"], cause["source"]) == ("refused", "space", "far")
        assert cause["source_space"] == scene.far.ask("space")
        assert "dtype: float32 here, bfloat16 there" in cause["differs"]
        assert "far's KV is not interchangeable with that of d0" in told.verdict
        assert "dtype: float32 here, bfloat16 there" in told.verdict
        assert "kvferry doctor" in told.verdict
    # The control: far still offers it, and from a node of d0's own space the same is pulled.
    (offer,) = [
        one
        for space in scene.plane.state().spaces.values()
        for one in space.offers.values()
        if one.offer == held.hint["offer"]
    ]
    assert (offer.node, offer.count) == ("far", BLOCKS)
    near = scene.hold("space-near", text, session=session, turn=1)
    scene.plane.wait_projected()
    for way, given in (("hint", {"hint": near.hint}), ("plan", {"session": session, "turn": 2})):
        scene.d0.ask("reset")
        pulled(scene, right, text, scene.d0.run(f"space-{way}", text, kvferry=given))
