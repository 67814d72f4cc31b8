"""The rule by which moving KV is recommended, or not."""

from __future__ import annotations

import msgspec

from kvferry.replay.advise.parts import part_of, rate, time
from kvferry.replay.advise.report import (
    AGAINST,
    DO_NOT_ENABLE,
    ENABLE,
    FOR,
    NEITHER,
    TOO_LITTLE,
    Link,
    Reason,
    Verdict,
)

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
        text = f"{seen.turns} turns are too few to judge by; record at least {REQUESTS_MIN}"
        reason = Reason(weighs=NEITHER, text=text)
        return Verdict(word=TOO_LITTLE, reasons=(reason,), rule=RULE)
    parts = [_saved(seen), *_links(seen), *_failures(seen)]
    against = [one for one in parts if one.weighs == AGAINST]
    in_favour = [one for one in parts if one.weighs == FOR]
    return Verdict(
        word=DO_NOT_ENABLE if against else ENABLE,
        reasons=(*against, *in_favour, *_repeats(seen), *_doubt(seen)),
        rule=RULE,
    )


def _weighed(text: str, *, good: bool) -> Reason:
    return Reason(weighs=FOR if good else AGAINST, text=text)


def _saved(seen: Evidence) -> Reason:
    share = seen.saved_s / seen.prefill_s if seen.prefill_s else 0.0
    good = share >= SAVED_SHARE_MIN
    real = seen.measured and not seen.observed
    if seen.saved_s < 0:
        text = (
            f"reuse {'took' if real else 'would take'} {time(-seen.saved_s)} more for moving than "
            f"it spared of computing, beside {time(seen.prefill_s)} of prefill"
        )
        return _weighed(text, good=False)
    of = part_of(seen.saved_s, seen.prefill_s)
    text = (
        f"reuse {'spared' if real else 'would spare'} {share:.1%} of prefill time ({of}), "
        f"{'no less' if good else 'less'} than the {SAVED_SHARE_MIN:.0%} from which it pays"
    )
    return _weighed(text, good=good)


def _links(seen: Evidence) -> list[Reason]:
    known = [link for link in seen.links if link.rate_bytes_s]
    if not known:
        return []
    worst = max(known, key=lambda link: link.peak_bytes_s / link.rate_bytes_s)
    good = worst.peak_bytes_s <= worst.rate_bytes_s
    text = (
        f"at its peak the link {worst.source} to {worst.target} is asked for "
        f"{rate(worst.peak_bytes_s)} and {'carries' if good else 'carries no more than'} "
        f"{rate(worst.rate_bytes_s)}"
    )
    return [_weighed(text, good=good)]


def _failures(seen: Evidence) -> list[Reason]:
    tried = seen.moved + seen.failed
    if not tried:
        return []
    share = seen.failed / tried
    good = share <= FAILED_SHARE_MAX
    cure = "" if good else "; `kvferry explain` of one of them names the cause"
    text = f"{seen.failed:,} of {tried:,} transfers failed ({share:.1%}){cure}"
    return [_weighed(text, good=good)]


def _repeats(seen: Evidence) -> list[Reason]:
    if not seen.prompt_tokens:
        return []
    share = seen.repeated_tokens / seen.prompt_tokens
    text = f"{share:.1%} of all prompt tokens repeat what had been computed before"
    return [Reason(weighs=NEITHER, text=text)]


def _doubt(seen: Evidence) -> list[Reason]:
    if seen.measured or not seen.saved_s:
        return []
    text = (
        "some of that an engine's own cache may give without any move: `kvferry observe` tells "
        "how much is left, before anything is moved"
    )
    return [Reason(weighs=NEITHER, text=text)]
