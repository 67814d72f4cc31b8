"""A request's end in the ledger, with what became of its KV; and in the log."""

from __future__ import annotations

import logging

from kvferry.core.events import RequestEnded
from kvferry_connectors.tilert.node.membership import Membership
from kvferry_connectors.tilert.node.work import Work

log = logging.getLogger("kvferry.tilert.node")


def tell(work: Work, membership: Membership) -> None:
    """Call once, with outcome and generation known."""
    outcome, generated, origin = work.outcome, work.generated, work.origin
    assert outcome is not None
    assert generated is not None
    if outcome.reason:
        log.info("kept nothing of %s: %s: %s", work.rid, outcome.reason, outcome.detail)
    else:
        log.info("kept %d blocks of %s", outcome.kept, work.rid)
    member = membership.member
    if member is None:
        return  # Nobody knows yet which space's record this belongs into.
    event = RequestEnded(
        request=work.rid,
        external_id=origin.external_id if origin is not None else "",
        session=origin.session if origin is not None else "",
        prompt_tokens=work.prompt_tokens,
        # The prompt's KV was there when the engine began: prefill had written it.
        local_tokens=work.prompt_tokens,
        output_tokens=len(generated.tokens),
        outcome=generated.outcome,
        session_over=origin.last_turn if origin is not None else False,
        kept_blocks=outcome.kept,
        not_kept=outcome.reason,
    )
    membership.outbox.facts(event, work.rid)
