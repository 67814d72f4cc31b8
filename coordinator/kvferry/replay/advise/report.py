"""What the advice is made of, whatever it was read from."""

from __future__ import annotations

import msgspec

ENABLE, DO_NOT_ENABLE, TOO_LITTLE = "enable", "do_not_enable", "too_little_data"
FOR, AGAINST, NEITHER = "for", "against", "neither"
ALL_LENGTHS = "all lengths"
WITHOUT, WITH = "without", "with reuse"
"""The same turns twice, of which at most one is measured."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Turns with one place in their sessions, and how much of their prompts was there before."""

    turn: str
    """``1``, ``2``, ... or a range such as ``9-16``."""
    requests: int
    prompt_tokens: int
    repeated_tokens: int
    reused_tokens: int | None = None
    """What was not computed again; None for a trace, where nothing was reused or not."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of something; the unit stands in the name of the field that holds it."""

    count: int
    p50: float
    p90: float
    p95: float
    p99: float


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping KV for so long after its last use would find again, and what it would hold."""

    keep_s: float
    gaps_share: float | None
    """Share of the gaps between turns that are no longer; None without any gap."""
    repeated_tokens: int | None
    """Of prompts, that this finds; None where the record does not tell."""
    mean_bytes: int | None
    """KV held on average; None where the record does not tell."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Offers that ended for one reason."""

    reason: str
    offers: int
    kept_s: Spread
    before_next_use: int
    """Turns that came after all offers of their session had ended, the last for this reason."""
    too_early_s: float
    """Median of how long before these turns; 0 without any."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One way from a source to a target."""

    source: str
    target: str
    moves: int
    bytes: int
    peak_bytes_s: float
    """Highest average of any ten seconds."""
    rate_bytes_s: float
    """What it was measured to carry, or was said to; 0 where nobody knows."""
    measured: str
    """How the rate is known: ``probe``, ``transfers``, ``option`` or empty."""


class Ttft(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token of prompts of like length, in seconds."""

    prompt: str
    """Tokens, as ``1k-4k``; or ``all lengths``."""
    how: str
    """``without`` and ``with reuse`` are the same turns, measured or predicted. What a ledger
    measured is also told by how KV was come by: ``computed``, ``own cache``, ``pulled``."""
    seconds: Spread


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One of the reasons of a recommendation."""

    weighs: str
    """``for`` enabling, ``against`` it, or ``neither``."""
    text: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, and why."""

    word: str
    """``enable``, ``do_not_enable`` or ``too_little_data``."""
    reasons: tuple[Reason, ...]
    """The one that decides first."""
    rule: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it. Tokens are those of prompts unless named otherwise."""

    kind: str
    """``ledger`` or ``trace``."""
    of: str
    """What was read, in words."""
    requests: int
    sessions: int
    span_s: float
    prompt_tokens: int
    repeated_tokens: int
    reused_tokens: int | None
    prompt_sent: int = 0
    """Prompt tokens whose KV was sent to TileRT nodes, beside ``prompt_tokens``."""
    shares: tuple[Share, ...]
    gaps_s: Spread | None
    keeping: tuple[Keeping, ...]
    hits: dict[str, int] = {}
    """Turns whose prompt was pulled, or lay for the greater part in the engine's own cache; a
    ledger's only."""
    misses: dict[str, int] = {}
    """All other turns, by the cause for which they pulled nothing; a ledger's only."""
    kept: tuple[Kept, ...] = ()
    bytes_per_turn: float = 0.0
    """Mean of all turns."""
    turn_bytes: Spread | None = None
    """Of the turns for which anything was or would be moved; None without any."""
    links: tuple[Link, ...] = ()
    ttft: tuple[Ttft, ...] = ()
    ttft_measured: bool = False
    prefill_s: float = 0.0
    """Computing without reuse: of all prompts for a trace; for a ledger what was computed and what
    was spared."""
    saved_s: float = 0.0
    """Computing that reuse spares, less what moving takes; negative where it costs more."""
    verdict: Verdict
    assumptions: tuple[str, ...] = ()
    """What was not measured but assumed, and what could not be known."""
