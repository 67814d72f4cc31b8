"""What a hint or a plan says, noted in the pull that goes by it."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.core.messages import Candidate, PlanAnswer
from kvferry.node.peers.hints import Hint
from kvferry_connectors.vllm.remainders import HINT
from kvferry_connectors.vllm.tracked import Pull, Tracked


def take_hint(tracked: Tracked, pull: Pull, hint: Hint) -> bool:
    """Note in ``pull`` what the hint says; True when its tail proves the whole prefix."""
    pull.basis, pull.source = HINT, hint.node
    pull.address, pull.incarnation = hint.address, hint.incarnation
    pull.hinted = hint.blocks
    if hint.blocks > tracked.prompt_blocks or tracked.hashes[hint.blocks - 1] != hint.tail:
        return False
    pull.granted = hint.blocks
    return True


def take_plan(pull: Pull, answer: PlanAnswer, candidates: Sequence[Candidate]) -> None:
    """Note in ``pull`` the plan's best candidate and its numbers."""
    best = candidates[0]
    pull.basis, pull.source = "plan", best.node
    pull.address, pull.incarnation = best.address, best.incarnation
    _take_numbers(pull, answer, best)
    pull.hinted = 0
    pull.limit = best.limit
    pull.options = tuple(candidate.node for candidate in candidates)


def _take_numbers(pull: Pull, answer: PlanAnswer, weighed: Candidate) -> None:
    """Note in ``pull`` what the plan thinks that moving and computing take."""
    pull.predicted_ms, pull.queue_ms = weighed.predicted_ms, weighed.queue_ms
    pull.recompute_ms = weighed.recompute_ms or answer.recompute_ms
    pull.doubt, pull.prefill_ms = weighed.doubt, answer.prefill_ms


def take_reason(pull: Pull, answer: PlanAnswer) -> None:
    """Note in ``pull`` why nothing is to be pulled, with the numbers of what was weighed."""
    pull.prefill_ms = answer.prefill_ms
    if answer.observed:
        # The coordinator knows before us that we only observe.
        take_observed(pull, answer, answer.observed)
    elif answer.dear:
        pull.source = answer.dear[0].node
        _take_numbers(pull, answer, answer.dear[0])


def take_observed(pull: Pull, answer: PlanAnswer, candidates: Sequence[Candidate]) -> None:
    """The same where nothing is pulled: what the source would grant is what the index knows."""
    take_plan(pull, answer, candidates)
    pull.granted = candidates[0].blocks
