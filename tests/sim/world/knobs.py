"""What a seed decides about a run. Each knob can be set by hand to replay or to narrow down."""

from __future__ import annotations

import random
from typing import Any

import msgspec


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """All knobs of a run; times end in their unit, shares are between 0 and 1."""

    profile: str = "peers"
    """``peers``: engines and hints only. ``ledger``: with the ledger and coordinators. ``slots``:
    with TileRT decode nodes and routers too, and few engines."""
    nodes: int = 3
    ranks: int = 1
    blocks: int = 40
    step_s: float = 0.01
    clients: int = 3
    turns: int = 4
    prompt_blocks_max: int = 8
    think_s: float = 0.2
    abort_share: float = 0.05
    forge_share: float = 0.05
    overlap_share: float = 0.2
    """Of turns whose decode follows the prefill while it runs."""
    latency_s: float = 0.001
    spike_share: float = 0.02
    preempt: float = 0.05
    planes: tuple[tuple[str, bool], ...] = (("direct", True),)
    """Name, and whether it is one-sided."""
    block_s: float = 0.003
    read_fails: float = 0.02
    read_hangs: float = 0.05
    hang_s: float = 1.5
    pin_timeout_ms: int = 300
    pin_ms: int = 1_000
    transfer_timeout_ms: int = 2_000
    handover_timeout_ms: int = 3_000
    lease_budget: float = 0.3
    lease_ms: int = 1_500
    faults_per_s: float = 1.5
    fault_kinds: tuple[str, ...] = ("cut", "part", "freeze", "kill", "stop", "reset_cache", "jump")
    busy_s: float = 6.0
    """How long faults happen and new turns begin."""
    ledger: bool = False
    coordinators: int = 0
    ledger_loses: float = 0.0
    """Share of messages to and from the ledger that are lost, repeated or late."""
    stream_bytes: int = 1 << 30
    checkpoint_s: float = 60.0
    fixed_ports: bool = False
    """A node that is started again serves its peers where the one before did."""
    outbox_facts: int = 8192
    batch_events: int = 256
    routers: int = 0
    """Routers that share two TileRT decode nodes."""


def draw(seed: int, profile: str, given: dict[str, str]) -> Knobs:
    """The knobs of a seed, with those given by hand in their place.

    Raises:
        ValueError: a knob is not known, or its value does not fit.
    """
    rng = random.Random(f"{seed}/knobs")
    drawn: dict[str, Any] = {
        "profile": profile,
        "nodes": rng.choice((2, 3, 3, 4)),
        "ranks": rng.choice((1, 1, 1, 2)),
        "blocks": rng.choice((24, 32, 48, 96)),
        "step_s": rng.choice((0.004, 0.01, 0.03)),
        "clients": rng.choice((2, 3, 5)),
        "turns": rng.choice((3, 4, 6)),
        "think_s": rng.choice((0.02, 0.2, 0.6)),
        "abort_share": rng.choice((0.0, 0.1, 0.2)),
        "overlap_share": rng.choice((0.0, 0.0, 0.5)),
        "latency_s": rng.choice((0.0003, 0.001, 0.01)),
        "spike_share": rng.choice((0.0, 0.02, 0.1)),
        "preempt": rng.choice((0.0, 0.05, 0.3)),
        "planes": rng.choice(
            ((("direct", True),), (("served", False),), (("direct", True), ("served", False)))
        ),
        "block_s": rng.choice((0.0005, 0.003, 0.03)),
        "read_fails": rng.choice((0.0, 0.05, 0.2)),
        "read_hangs": rng.choice((0.0, 0.1, 0.3)),
        "hang_s": rng.choice((0.3, 1.5, 4.0)),
        "lease_budget": rng.choice((0.0, 0.2, 0.5)),
        "faults_per_s": rng.choice((0.0, 1.0, 3.0, 6.0)),
    }
    if profile == "ledger":
        drawn |= {
            "ledger": True,
            "coordinators": rng.choice((1, 2, 3)),
            "ledger_loses": rng.choice((0.0, 0.05, 0.2)),
            "stream_bytes": rng.choice((1 << 30, 1 << 30, 60_000)),
            "checkpoint_s": rng.choice((1.5, 4.0)),
            "outbox_facts": rng.choice((8192, 8192, 40)),
            "batch_events": rng.choice((256, 2)),
            "busy_s": 8.0,
            "fault_kinds": (
                "cut", "part", "freeze", "kill", "stop", "twin", "reset_cache", "jump",
                "part_ledger", "kill_coordinator", "stop_coordinator", "freeze_coordinator",
                "part_coordinator", "tear_snapshot", "pause_space",
            ),
        }  # fmt: skip
    if profile == "slots":
        drawn |= {
            "ledger": True,
            "nodes": 2,
            "clients": 1,
            "latency_s": rng.choice((0.0003, 0.001)),
            "think_s": 0.6,
            "coordinators": rng.choice((2, 3)),
            "ledger_loses": rng.choice((0.0, 0.0, 0.05)),
            "checkpoint_s": rng.choice((1.5, 4.0)),
            "routers": rng.choice((2, 3)),
            "faults_per_s": rng.choice((0.3, 0.6, 1.0)),
            "busy_s": 20.0,
            "fault_kinds": (
                "kill_router", "kill_router", "freeze_router", "part_router", "kill_coordinator",
                "stop_coordinator", "freeze_coordinator", "part_coordinator",
            ),
        }  # fmt: skip
    kinds = {name: type(value) for name, value in msgspec.structs.asdict(Knobs()).items()}
    for name, value in given.items():
        if name not in kinds:
            raise ValueError(f"there is no knob {name!r}; known are {', '.join(sorted(kinds))}")
        drawn[name] = msgspec.json.decode(value) if kinds[name] is not str else value
    try:
        return msgspec.convert(drawn, Knobs)
    except msgspec.ValidationError as error:
        raise ValueError(f"a knob does not fit: {error}") from error
