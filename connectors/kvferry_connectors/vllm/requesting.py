"""The ``requested`` event of a request: the transfer that it opens, or why it opens none."""

from __future__ import annotations

from collections.abc import Callable

from kvferry.core.cost import MODEL
from kvferry.core.events import Requested
from kvferry.ids import SHORT_BYTES
from kvferry_connectors.vllm.tracked import PullState, Tracked


def requested(tracked: Tracked, miss: Callable[[Tracked], str], stride: int) -> Requested:
    """What the ledger is told at the request's admission.

    Args:
        tracked: the request.
        miss: why nothing is pulled; asked only where nothing is.
        stride: blocks between two sampled hashes.
    """
    pull = tracked.pull
    if pull is None:
        return Requested(
            request=tracked.id,
            wanted=tracked.prompt_blocks,
            local_tokens=tracked.local_tokens,
            basis="told" if tracked.told else "",
            miss=miss(tracked),
            session=tracked.session,
            external_id=tracked.params.id,
            hinted=tracked.hinted,
            tenant=tracked.tenant,
            position=tracked.position,
            tail=_sampled(tracked, tracked.prompt_blocks, stride),
        )
    loading = pull.state is PullState.LOADING
    return Requested(
        request=tracked.id,
        transfer=pull.transfer if loading else "",
        source=pull.source,
        source_incarnation=pull.incarnation,
        wanted=tracked.prompt_blocks,
        local_tokens=tracked.local_tokens,
        granted=pull.granted,
        basis="told" if tracked.told else pull.basis,
        predicted_ms=pull.predicted_ms,
        recompute_ms=pull.recompute_ms,
        options=pull.options,
        miss="" if loading else miss(tracked),
        session=tracked.session,
        external_id=tracked.params.id,
        queue_ms=pull.queue_ms,
        doubt=pull.doubt,
        prefill_ms=pull.prefill_ms,
        model=MODEL if pull.predicted_ms or pull.prefill_ms else 0,
        upto=_sampled(tracked, pull.granted, stride) if loading else b"",
        hinted=tracked.hinted,
        tenant=tracked.tenant,
        position=tracked.position,
        waited_ms=tracked.waited_ms,
        tail=_sampled(tracked, tracked.prompt_blocks, stride),
        weighed_from=pull.weighed_from,
        tried=pull.tried,
    )


def _sampled(tracked: Tracked, blocks: int, stride: int) -> bytes:
    """Short hash of the last sampled block among the prompt's first ``blocks``."""
    last = blocks - blocks % stride
    return bytes(tracked.hashes[last - 1][:SHORT_BYTES]) if last else b""
