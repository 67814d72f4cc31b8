"""Why a TileRT decode node kept nothing of a request, by the word in the ledger."""

from __future__ import annotations

NOT_KEPT = {
    "no_origin": "prefill does not say where the prompt comes from",
    "bad_key": "the origin is signed with another cluster key",
    "bad_origin": "the origin cannot be understood",
    "stale_origin": "the origin was signed too long ago",
    "other_request": "the origin is another request's",
    "wrong_space": "the prompt is of another space than this node's",
    "hash_scheme": "this node cannot make the block hashes of the prompt's space",
    "layout": "this node's rows do not make blocks of the prompt's space",
    "no_export": "the engine has no rows to give",
    "not_joined": "the node could not become one of the prompt's space",
    "nothing_new": "no block became full beyond those of the prompt",
    "session_end": "the client said that no turn follows",
    "paused": "an operator paused this node or its space",
    "no_room": "the host tier has no room for the chain",
    "busy": "too many requests before this one are still being kept",
    "overwritten": "the receive buffer was given to another request meanwhile",
    "too_slow": "the rows were not copied within the bound",
    "decode_failed": "the engine failed",
    "error": "keeping it failed; the node's log says how",
    "outbox_full": "the ledger is too far behind for anything new to be kept",
    "closed": "the node stops",
}
"""``not_kept`` of ``request_ended`` by its word. Words stand in ledgers and stay as they are."""


def not_kept(word: str) -> str:
    """The reason as a clause; the word itself where a newer node wrote it."""
    return NOT_KEPT.get(word, word)
