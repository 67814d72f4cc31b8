"""Posting reads, and what tests wait for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from tests.contract.pools import CANARY, Pool
from tests.contract.sources import Source

from kvferry.ports.backend import Backend, Posted, ReadOutcome, ReadRequest, Verify

WAIT_S = 60.0
_POLL_S = 0.0002
_numbers = itertools.count()


def post(
    target: Backend,
    source: Source | bytes,
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    *,
    transfer: str = "",
    grant: bytes = b"",
    verify: Verify = Verify.FULL,
    deadline_s: float = WAIT_S,
) -> Posted:
    """Start a read of a source, or of whatever a description names."""
    return target.post(
        ReadRequest(
            transfer=transfer or f"t.{next(_numbers)}",
            peer=source if isinstance(source, bytes) else source.description,
            grant=grant,
            source_blocks=source_blocks,
            target_blocks=target_blocks,
            verify=verify,
            deadline_s=deadline_s,
        )
    )


def finished(posted: Posted) -> ReadOutcome:
    """The read's outcome, which has to come in time and to stay the same."""
    outcome = posted.wait(WAIT_S)
    assert outcome is not None, "no outcome within the deadline"
    assert posted.poll() == outcome
    return outcome


def caught(target_pool: Pool, posted: Posted) -> bool:
    """Wait until the first bytes have come; False if the read is over already."""
    until = time.monotonic() + WAIT_S
    while target_pool.first_byte_of(0) == CANARY:
        if posted.poll() is not None:
            return False
        assert time.monotonic() < until
        time.sleep(_POLL_S)
    return posted.poll() is None
