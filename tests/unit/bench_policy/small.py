"""A fleet so small and so simple that its figures can be computed by hand.

A block of 512 tokens takes one second to compute, whatever stands before it; an answer takes one
second a token; moving takes next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.bench.policy.run import Plan, Run
from kvferry.bench.policy.shapes import Shape
from kvferry.bench.policy.sizes import Sizes
from kvferry.core.retention_value import Rules
from kvferry.replay.trace import Turn, turns_of

SHAPE = Shape(
    name="small",
    token_bytes=1,
    prefill=1,
    decode=1,
    hbm_bytes=10_000,
    token_s=1 / 512,
    context_s=0.0,
    request_s=0.0,
    step_s=1.0,
    link_bytes_s=1e12,
    link_floor_s=0.0,
    host_bytes_s=1e12,
)
REST = 100
"""Tokens of a prompt behind its last full block."""

Line = tuple[float, int, int, list[int]]


def asks(at_s: float, blocks: Sequence[int], answer: int = 1) -> Line:
    """A prompt of these full blocks and a rest that nobody shares."""
    return at_s, 512 * len(blocks) + REST, answer, [*blocks, -int(at_s * 1_000) - 1]


def run(
    policy: str,
    lines: Sequence[Line],
    *,
    hbm: int,
    host: int = 0,
    prefill: int = 1,
    decode: int = 1,
    ttl_s: float = 480.0,
    shape: Shape = SHAPE,
) -> Run:
    """Runs the trace to its end."""
    turns: list[Turn] = turns_of(lines)
    plan = Plan(
        policy=policy,
        shape=shape,
        prefill=prefill,
        decode=decode,
        sizes=Sizes(hbm=hbm, host=host),
        ttl_s=ttl_s,
        rules=Rules(),
    )
    one = Run(plan, turns)
    one.go()
    return one
