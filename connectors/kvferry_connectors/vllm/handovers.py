"""When a request whose prompt another engine still computes begins to take the blocks over.

Waiting costs nothing, blocks do: the longer a request waits before it allocates its own, the
shorter they lie idle; and if it waits too long, nothing is left to read beside the prefill.
"""

from __future__ import annotations

import enum
import time

from kvferry.node.export.published import COMPLETE, ENDED, LAST, OTHER, PAUSED, STOPPED, UNKNOWN
from kvferry.node.pull.follower import CLOSED, GONE, REFUSED, UNREACHABLE, Following
from kvferry_connectors.vllm.looking import REFUSALS, Looker
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.tracked import PullState, Tracked

ARRIVAL_S = 5.0
"""How much later than here a request may reach the engine that computes its prompt."""

LOST = {
    ENDED: "not_offered",
    OTHER: "diverged",
    PAUSED: "paused",
    STOPPED: "node_left",
    GONE: "node_left",
    CLOSED: "aborted",
    UNREACHABLE: "peer_unreachable",
}
"""A state in which nothing comes any more, as the miss that the ledger records."""


class Step(enum.Enum):
    """What a request that follows a prefill does now."""

    WAIT = "wait"
    TAKE = "take"
    """Allocate, and read what is there and what will come."""
    LOST = "lost"
    """Look elsewhere."""


def next_step(
    following: Following | None, options: Options, local: int, wanted: int, now_s: float
) -> tuple[Step, str]:
    """What to do, and when all is lost the miss.

    Of ``wanted`` blocks of the prompt the first ``local`` are in this engine's own cache.
    """
    if following is None:
        return Step.WAIT, ""
    state, ready = following.state, following.ready
    if state in (LAST, COMPLETE) or (state == ENDED and ready > local):
        return Step.TAKE, ""
    if state == REFUSED:
        return Step.LOST, REFUSALS.get(following.detail.partition(":")[0], "bad_hint")
    if state in LOST:
        return Step.LOST, LOST[state]
    since_s = following.unknown_since_s
    if state == UNKNOWN and since_s and now_s - since_s > ARRIVAL_S:
        return Step.LOST, "not_offered"
    enough = ready > local and ready - local >= options.handover_start * (wanted - local)
    return (Step.TAKE if enough else Step.WAIT), ""


class Handovers:
    """Requests that follow a prefill, on the engine thread."""

    def __init__(self, options: Options, looker: Looker, block_size: int) -> None:
        self._options = options
        self._looker = looker
        self._block_size = block_size

    def advance(self, tracked: Tracked, local_tokens: int) -> tuple[Step, str]:
        """What the request's pull does now; with LOST why it has to be dropped.

        Where the prefill is lost and a coordinator is there, a plan is asked for first.
        """
        pull = tracked.pull
        assert pull is not None
        now, local = time.monotonic(), local_tokens // self._block_size
        following, wanted = pull.following, tracked.prompt_blocks
        step, miss = next_step(following, self._options, local, wanted, now)
        if step is Step.TAKE and following is not None:
            pull.granted = following.ready if following.state == ENDED else wanted
            pull.started = now  # From here on it is a transfer like any other.
            pull.state = PullState.READY
        elif step is Step.WAIT and now >= pull.answer_by:
            return Step.LOST, "prefill_late"
        elif step is Step.LOST and self._looker.has_plans():
            self._looker.leave(pull)
            pull.basis = pull.source = pull.address = pull.incarnation = ""
            pull.miss = miss
            wait_ms = self._options.pin_timeout_ms + self._options.plan_deadline_ms
            pull.answer_by = now + wait_ms / 1000
            self._looker.ask_plan(tracked, pull)
            return Step.WAIT, ""
        return step, miss
