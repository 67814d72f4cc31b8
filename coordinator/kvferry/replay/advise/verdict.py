"""The rule by which moving KV is recommended, or not."""

from __future__ import annotations

import msgspec

from kvferry.replay.advise.report import DO_NOT_ENABLE, ENABLE, TOO_LITTLE, Link, Verdict

REQUESTS_MIN = 20
SAVED_SHARE_MIN = 0.05
FAILED_SHARE_MAX = 0.05
RULE = (
    f"With fewer than {REQUESTS_MIN} turns nothing is recommended. Enable it if reuse spares at "
    f"least {SAVED_SHARE_MIN:.0%} of prefill time after what moving takes, no link is asked for "
    f"more than it carries in its busiest ten seconds, and at most {FAILED_SHARE_MAX:.0%} of "
    "transfers fail. Otherwise do not enable it."
)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule looks at."""

    turns: int
    prompt_tokens: int
    repeated_tokens: int
    prefill_s: float
    saved_s: float
    links: tuple[Link, ...]
    moved: int = 0
    failed: int = 0
    observed: bool = False
    """Reuse was only observed."""
    measured: bool = False


def judge(seen: Evidence) -> Verdict:
    """The recommendation; a reason for each part of the rule, and first the one that decides."""
    if seen.turns < REQUESTS_MIN:
        reason = f"{seen.turns} turns are too few to judge by; record at least {REQUESTS_MIN}"
        return Verdict(word=TOO_LITTLE, reasons=(reason,), rule=RULE)
    parts = [_saved(seen), *_links(seen), *_failures(seen)]
    against = [text for good, text in parts if not good]
    in_favour = [text for good, text in parts if good]
    return Verdict(
        word=DO_NOT_ENABLE if against else ENABLE,
        reasons=(*against, *in_favour, *_repeats(seen), *_doubt(seen)),
        rule=RULE,
    )


def _saved(seen: Evidence) -> tuple[bool, str]:
    share = seen.saved_s / seen.prefill_s if seen.prefill_s else 0.0
    good = share >= SAVED_SHARE_MIN
    verb = "spared" if seen.measured and not seen.observed else "would spare"
    if seen.saved_s < 0:
        verb = "took" if seen.measured and not seen.observed else "would take"
        return False, (
            f"reuse {verb} {-seen.saved_s:,.1f} s more for moving than it spared of computing, "
            f"beside {seen.prefill_s:,.1f} s of prefill"
        )
    than = "no less" if good else "less"
    return good, (
        f"reuse {verb} {share:.1%} of prefill time ({seen.saved_s:,.1f} of {seen.prefill_s:,.1f} "
        f"s), {than} than the {SAVED_SHARE_MIN:.0%} from which it pays"
    )


def _links(seen: Evidence) -> list[tuple[bool, str]]:
    known = [link for link in seen.links if link.rate_bytes_s]
    if not known:
        return []
    worst = max(known, key=lambda link: link.peak_bytes_s / link.rate_bytes_s)
    good = worst.peak_bytes_s <= worst.rate_bytes_s
    return [
        (
            good,
            f"at its peak the link {worst.source} to {worst.target} is asked for "
            f"{worst.peak_bytes_s / 1e9:,.3f} GB/s "
            f"and {'carries' if good else 'carries no more than'} "
            f"{worst.rate_bytes_s / 1e9:,.3f} GB/s",
        )
    ]


def _failures(seen: Evidence) -> list[tuple[bool, str]]:
    tried = seen.moved + seen.failed
    if not tried:
        return []
    share = seen.failed / tried
    good = share <= FAILED_SHARE_MAX
    cure = "" if good else "; `kvferry explain` of one of them names the cause"
    return [(good, f"{seen.failed:,} of {tried:,} transfers failed ({share:.1%}){cure}")]


def _repeats(seen: Evidence) -> list[str]:
    if not seen.prompt_tokens:
        return []
    share = seen.repeated_tokens / seen.prompt_tokens
    return [f"{share:.1%} of all prompt tokens repeat what had been computed before"]


def _doubt(seen: Evidence) -> list[str]:
    if seen.measured or not seen.saved_s:
        return []
    return [
        "some of that an engine's own cache may give without any move: `kvferry observe` tells "
        "how much is left, before anything is moved"
    ]
