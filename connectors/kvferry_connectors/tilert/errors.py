"""Why a claimed request's KV was not delivered, by name."""

from __future__ import annotations

from kvferry.errors import KVFerryError

REASONS = {
    "bad_mark": "the request's mark cannot be read",
    "no_token_ids": "the request has no token ids that the decode node could go on from",
    "model_unfit": "the model's KV cache is not one that the profile describes",
    "unreachable": "nobody accepts connections at the target's control port, or it hung up",
    "timeout": "the decode node did not answer in time",
    "bad_frame": "what the decode node sent is no message of the protocol",
    "wrong_magic": "what listens at the target is no TileRT decode node",
    "protocol_version": "the decode node speaks another version of the protocol",
    "layout_version": "the decode node serves another model or another KV cache dtype",
    "sender_count": "the decode node waits for another number of senders",
    "transport": "the decode node moves bytes by something else than NIXL",
    "sequence_too_long": "the prompt does not fit into the decode node's buffer",
    "busy": "the decode node was busy for as long as admission was tried",
    "cancelling": "the decode node has given this request up, for as long as admission was tried",
    "duplicate_rank": "somebody has sent this request's KV to the decode node already",
    "not_admitted": "the decode node refused for a reason of its own",
    "staging_full": "all staging memory is held by sends under way",
    "staging_unavailable": "there is no memory for staging",
    "writer_unavailable": "NIXL cannot be used here",
    "write_failed": "NIXL failed to write into the decode node's buffer",
    "extraction_failed": "the rows could not be copied out of the KV cache",
    "late": "the time in which its KV may be written to the decode node was over",
    "cancelled": "the request was aborted",
    "closed": "the engine shuts down",
    "untold": "no rank told in time how it ended",
}
"""Every word that a refusal may name. They appear in replies and logs and stay as they are."""

CLAIM, STAGING, ADMISSION, WRITE, DONE = "claim", "staging", "admission", "write", "done"
"""How far a send came, in order."""


def stage_of(reason: str) -> str:
    """Where a send failed that no rank had begun."""
    return STAGING if reason.startswith("staging") else CLAIM


class SendRefused(KVFerryError):
    """The KV of a claimed request is not, or not wholly, on the decode node.

    Attributes:
        reason: one of :data:`REASONS`.
        detail: the numbers, and the cure where there is one.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail or REASONS[reason]
