"""How a transfer ended, from what its ranks reported: one event, exactly once."""

from __future__ import annotations

import time
from collections import defaultdict

from kvferry.core.events import LinkProbed, TransferFailed, Transferred
from kvferry.node.pull.attempt import NOBODY_LISTENS
from kvferry_connectors.vllm.looking import REFUSALS
from kvferry_connectors.vllm.metadata import RankResult
from kvferry_connectors.vllm.tracked import Pull, Tracked


def outcome(
    tracked: Tracked, pull: Pull, *, block_size: int, verify: str
) -> Transferred | TransferFailed:
    """The outcome of ``tracked``'s transfer; notes in ``tracked`` what the request may use.

    The shortest rank decides: a block that one rank lacks is recomputed on all of them.
    """
    results: list[RankResult] = tracked.results
    bad = next((r for r in results if not r.ok), None)
    count = min(r.count for r in results)
    total_ms = (time.monotonic() - pull.started) * 1000
    if bad is None and count > 0 and not tracked.finished:
        tracked.pulled_tokens = count * block_size
        tracked.source, tracked.pull_ms = pull.source, total_ms
        slowest = max(results, key=lambda r: r.total_ms)
        return Transferred(
            transfer=pull.transfer,
            request=tracked.id,
            source=pull.source,
            start=tracked.start_block,
            count=count,
            tokens=tracked.pulled_tokens,
            bytes=sum(r.bytes for r in results),
            backend=slowest.backend,
            pin_ms=round(slowest.pin_ms, 3),
            read_ms=round(slowest.read_ms, 3),
            settle_ms=round(slowest.settle_ms, 3),
            total_ms=round(total_ms, 3),
            verify=verify,
            verified_blocks=min(r.verified_blocks for r in results),
            host_blocks=max(r.host_blocks for r in results),
        )
    tracked.miss = _miss(pull, bad)
    if tracked.finished and (bad is None or bad.reason == "aborted"):
        stage, reason = "use", "aborted"
    elif bad is None:
        stage, reason = "pin", "refused"
    else:
        stage, reason = bad.stage, bad.reason
    return TransferFailed(
        transfer=pull.transfer,
        request=tracked.id,
        source=pull.source,
        stage=stage,
        reason=reason,
        detail=(bad.detail if bad else "")[:200],
        fence=bad.fence if bad else "",
        total_ms=round(total_ms, 3),
    )


def links_probed(tracked: Tracked, pull: Pull) -> list[LinkProbed]:
    """What the ranks of a transfer measured on the way, and the backend that they use now.

    Ranks read side by side, so their rates add up; where some measured nothing, those that did
    stand for all. The first that chose speaks for them.
    """
    results: list[RankResult] = tracked.results
    chosen = [r.chosen for r in results if r.chosen is not None]
    if not chosen:
        return []
    rates: dict[str, list[float]] = defaultdict(list)
    floors: dict[str, float] = defaultdict(float)
    for one in (m for choice in chosen for m in choice.measured):
        rates[one.backend].append(one.gb_per_s)
        floors[one.backend] = max(floors[one.backend], one.floor_ms)
    first, ranks = chosen[0], len(results)
    return [
        LinkProbed(
            peer=pull.source,
            backend=name,
            gb_per_s=round(sum(rates[name]) * ranks / max(1, len(rates[name])), 4),
            floor_ms=floors[name],
            why=first.why if name == first.backend else "",
        )
        for name in dict.fromkeys((*rates, first.backend))
    ]


def _miss(pull: Pull, bad: RankResult | None) -> str:
    if pull.miss:
        return pull.miss
    if bad is None:
        return "not_offered"
    if bad.stage == "pin" and bad.reason == "unreachable":
        return "node_left" if bad.detail.startswith(NOBODY_LISTENS) else "peer_unreachable"
    if bad.stage == "pin" and bad.reason == "refused":
        return REFUSALS.get(bad.detail.partition(":")[0], "transfer_failed")
    return "transfer_failed"
