"""How nodes keep: what is decided of it, how it folds, and what it comes to on a node."""

from __future__ import annotations

import pytest
from tests.unit.core.support import SPACE, Ledger, started
from tests.unit.core.test_core_decide import NOW_MS, heard, store

from kvferry.core.commands import SetPolicy, SetRetention
from kvferry.core.decide import decide
from kvferry.core.decision import Decision
from kvferry.core.effects import SendControl
from kvferry.core.events import NodeClosed, PolicySet
from kvferry.core.kept import Kept, kept
from kvferry.core.messages import Control
from kvferry.core.retention_settings import AS_STARTED, SETTINGS, RetentionSettings, in_words
from kvferry.core.retention_value import Rules
from kvferry.core.state import NodeState


def settle(ledger: Ledger, node: str = "", unset: tuple[str, ...] = (), **given: float) -> Decision:
    """Decide a policy and store it."""
    settings = RetentionSettings(**given)  # type: ignore[arg-type]
    command = SetRetention(space=SPACE, settings=settings, unset=unset, node=node, who="ana")
    decision = decide(ledger.state, command, NOW_MS)
    store(ledger, decision)
    return decision


def test_a_setting_is_told_to_all_and_repeated_with_each_heartbeat() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    d0.write(NodeClosed(incarnation="d0-a"))
    settings = RetentionSettings(lease_ms=60_000)
    decision = settle(ledger, lease_ms=60_000)
    event = PolicySet(term=1, version=1, mode="on", who="ana", retention=settings)
    control = Control(verb="policy", mode="on", version=1, retention=settings, incarnation="p0-a")
    assert decision.events == ((SPACE, event),)
    assert decision.effects == (SendControl(space=SPACE, node="p0", control=control),)
    assert heard(ledger, p0) == [control]
    again = settle(ledger, lease_ms=60_000)
    assert (again.events, again.effects) == ((), decision.effects)


def test_a_mode_leaves_settings_alone_and_settings_leave_modes_alone() -> None:
    ledger, (p0, d0) = started("p0", "d0")
    store(ledger, decide(ledger.state, SetPolicy(space=SPACE, mode="paused", node="p0"), NOW_MS))
    settle(ledger, lease_ms=60_000)
    assert [ledger.space.mode_of(node) for node in ("p0", "d0")] == ["paused", "on"]
    store(ledger, decide(ledger.state, SetPolicy(space=SPACE, mode="observe"), NOW_MS))
    for node in (p0, d0):
        (control,) = heard(ledger, node)
        assert (control.mode, control.version) == ("observe", 3)
        assert control.retention == RetentionSettings(lease_ms=60_000)


def test_what_holds_for_a_node_is_its_own_then_its_spaces() -> None:
    ledger, _ = started("p0", "d0")
    settle(ledger, lease_ms=60_000, lease_budget=0.2)
    settle(ledger, "p0", lease_ms=5_000, host_budget=0.5)
    space = ledger.space
    assert space.retention_of("d0").given() == {"lease_ms": 60_000, "lease_budget": 0.2}
    assert space.retention_of("p0").given() == {
        "lease_ms": 5_000,
        "lease_budget": 0.2,
        "host_budget": 0.5,
    }
    settle(ledger, lease_ms=9_000)
    assert space.retention_of("p0").given() == {
        "lease_ms": 9_000,
        "lease_budget": 0.2,
        "host_budget": 0.5,
    }, "a setting for the space takes the place of a node's own, and of no other setting"
    settle(ledger, "p0", unset=("host_budget",))
    assert space.retentions == {}
    settle(ledger, unset=("lease_ms", "lease_budget"))
    assert (space.retention, space.policy_version) == (AS_STARTED, 5)
    assert settle(ledger, unset=("lease_ms",)).events == ()


def test_an_older_policy_changes_nothing() -> None:
    ledger, _ = started("p0")
    for version, lease_ms in ((2, 60_000), (1, 5_000)):
        settings = RetentionSettings(lease_ms=lease_ms)
        ledger.decide(PolicySet(term=1, version=version, mode="on", retention=settings))
    assert ledger.space.retention.lease_ms == 60_000


@pytest.mark.parametrize(
    ("node", "given", "unset", "said"),
    [
        ("", {"lease_budget": 0.95}, (), "lease_budget=0.95 is out of range: use a share"),
        ("", {"lease_ms": -1}, (), "use milliseconds from 0 to 6.048e+08"),
        ("", {"host_budget": float("nan")}, (), "host_budget=nan"),
        ("", {}, ("ttl",), "no retention setting 'ttl'; known: lease_ms"),
        ("", {"lease_ms": 5}, ("lease_ms",), "both set and unset"),
        ("", {}, (), "nothing is to be set"),
        ("x9", {"lease_ms": 5}, (), "no node 'x9' in"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(
    node: str, given: dict[str, float], unset: tuple[str, ...], said: str
) -> None:
    ledger, _ = started("p0")
    decision = settle(ledger, node, unset, **given)
    assert said in decision.refused
    assert (decision.events, decision.effects) == ((), ())


def test_no_setting_of_an_unknown_space() -> None:
    ledger, _ = started("p0")
    command = SetRetention(space="elsewhere", settings=RetentionSettings(lease_ms=5))
    assert "no space 'elsewhere'" in decide(ledger.state, command, NOW_MS).refused


SAID = {"lease_blocks": 100, "lease_ms": 30_000, "watermark_blocks": 50, "retain_max_ms": 7_000}
STARTED = Kept(
    rules=Rules(lease_ms=30_000, retain_max_ms=7_000),
    lease_blocks=100,
    watermark_blocks=50,
    host_blocks=40,
)


@pytest.mark.parametrize(
    ("said", "given", "expected"),
    [
        (SAID, {}, STARTED),
        ({}, {}, {"retain_max_ms": 600_000}),
        (SAID, {"lease_ms": 5_000}, {"lease_ms": 5_000}),
        (SAID, {"lease_ms": 0}, {"lease_ms": 1, "lease_blocks": 0}),
        (SAID, {"lease_budget": 0.25}, {"lease_blocks": 250}),
        (SAID, {"free_watermark": 0.5}, {"watermark_blocks": 500}),
        (SAID, {"retain_max_ms": 0}, {"retain_max_ms": 0}),
        (SAID, {"host_budget": 0.25}, {"host_blocks": 10}),
        ({**SAID, "lease_blocks": 0, "lease_ms": 0}, {"lease_ms": 30_000}, {}),
        ({**SAID, "lease_blocks": 0}, {"lease_ms": 5_000}, {"lease_ms": 5_000, "lease_blocks": 0}),
    ],
)
def test_what_a_node_keeps_by(
    said: dict[str, int], given: dict[str, float], expected: Kept | dict[str, int]
) -> None:
    node = NodeState(
        name="d0", space=SPACE, incarnation="i", epoch=1, blocks=1_000, host_blocks=40, **said
    )
    now = kept(node, RetentionSettings(**given))  # type: ignore[arg-type]
    if isinstance(expected, Kept):
        assert now == expected
        return
    plain = {
        "lease_ms": STARTED.rules.lease_ms,
        "retain_max_ms": STARTED.rules.retain_max_ms,
        "lease_blocks": STARTED.lease_blocks,
        "watermark_blocks": STARTED.watermark_blocks,
        "host_blocks": STARTED.host_blocks,
    } | expected
    assert {
        "lease_ms": now.rules.lease_ms,
        "retain_max_ms": now.rules.retain_max_ms,
        "lease_blocks": now.lease_blocks,
        "watermark_blocks": now.watermark_blocks,
        "host_blocks": now.host_blocks,
    } == plain


def test_each_setting_has_words() -> None:
    for name in SETTINGS:
        some, none = (in_words(RetentionSettings(**{name: value})) for value in (0.5, 0))  # type: ignore[arg-type]
        assert some != none
    both = RetentionSettings(lease_ms=60_000, lease_budget=0.2)
    assert in_words(both) == "leases last 60 s, leases hold at most 20 % of the pool"
    assert in_words(AS_STARTED, ("lease_ms",)) == "lease_ms as before it was set"
