"""Why a request reused nothing, in plain words, and what an operator can do about it."""

from __future__ import annotations

import msgspec

from kvferry.core.events import Requested
from kvferry.replay.words import counted


class Cause(msgspec.Struct, frozen=True):
    """The meaning of one miss word."""

    word: str
    meaning: str
    cure: str


_CAUSES: dict[str, tuple[str, str]] = {
    "nothing_held": (
        "no other node of the space offered any prefix of this prompt",
        "normal for a first turn; if it is a later one, `kvferry explain SESSION` tells what the "
        "turn before left",
    ),
    "diverged": (
        "the prompt differs from what is held from that token on, so only the part before it "
        "could be shared",
        "keep earlier turns byte for byte: edited history, stripped reasoning and timestamps in "
        "the system prompt end the common prefix",
    ),
    "node_left": (
        "the node that held the prefix was declared gone",
        "look at that node's process and log; `kvferry status` says when it fell silent",
    ),
    "space_mismatch": (
        "the two nodes do not hold interchangeable KV",
        "`kvferry doctor` names the components that differ; start both engines with the same "
        "model, revision, dtypes, block size and PYTHONHASHSEED",
    ),
    "bad_hint": (
        "the hint in the request was malformed or not signed with the cluster key",
        "give every node and router the same key file, and do not let clients send "
        "kv_transfer_params",
    ),
    "expired_hint": (
        "the hint was older than its expiry",
        "the next turn came later than hints live; a plan is asked for instead when a "
        "coordinator runs, so start one with `kvferry up` or `kvferry coordinator`",
    ),
    "not_offered": (
        "the source did not hold the blocks when it was asked",
        "the engine reused the memory: give the source more KV blocks or a larger lease budget",
    ),
    "too_dear": (
        "moving the blocks was predicted to take longer than computing them again",
        "nothing to do if the prediction is right: `kvferry audit` says how right predictions are, "
        "and `kvferry status` how fast the link was",
    ),
    "busy": (
        "the nodes that hold the prefix sent, or this one received, as much as they should at a "
        "time, and waiting for a turn would have taken longer than computing",
        "normal in a burst; if it stays, look at the transfers in flight in `kvferry status`, and "
        "spread the sessions over more nodes",
    ),
    "too_short": (
        "the shareable prefix was shorter than the least that is worth a transfer",
        "nothing to do; a short prefix is computed faster than it is moved",
    ),
    "paused": (
        "reuse is paused for this node or its space",
        "`kvferry resume` puts it back in force",
    ),
    "observe": (
        "the node observes only: it records what it would have pulled and pulls nothing",
        "`kvferry resume` lets it pull",
    ),
    "plan_late": (
        "the coordinator did not answer within the plan's deadline",
        "look at the coordinator's lag in `kvferry status`; give it a core of its own, or let "
        "the router pass hints so that no plan is needed",
    ),
    "prefill_late": (
        "the request waited for another engine to compute its prompt, and that took too long",
        "that engine is overloaded: add prefill engines, raise handover_timeout_ms, or turn the "
        "router's --overlap off",
    ),
    "no_coordinator": (
        "there was no hint, and no coordinator could be asked",
        "start one with `kvferry up` or `kvferry coordinator`, and check the NATS url that the "
        "engine was given",
    ),
    "peer_unreachable": (
        "the source could not be reached over its peer address",
        "check that its peer port is open from the target (`kvferry doctor` tries it) and that "
        "the advertised address is the one others can reach",
    ),
    "unshareable": (
        "the request's KV must not be shared, or its model layout cannot be",
        "the node's warnings in `kvferry status` say what limits it",
    ),
    "policy_unset": (
        "the engine's policy for failed loads does not allow a pull",
        "set kv_load_failure_policy to recompute in the engine's kv-transfer-config",
    ),
    "outbox_full": (
        "the node had too many facts waiting for the ledger, so it started no transfer",
        "NATS is slow or gone: `kvferry doctor` tells which",
    ),
    "local": (
        "the engine's own cache already held all that could be shared",
        "nothing to do: this is the best case",
    ),
    "transfer_failed": (
        "the blocks were being moved, but the transfer ended without use, so the prompt was "
        "computed",
        "`kvferry explain` names the stage and the reason of the transfer that failed",
    ),
    "unused": (
        "the engine did not use the prefix that was found for it",
        "nothing to do; vLLM takes no outside prefix for some requests, for example with "
        "prompt_logprobs",
    ),
    "aborted": (
        "the request was aborted before its prefix had been found",
        "nothing to do; the client went away or the engine gave the request up",
    ),
    "not_joined": (
        "the coordinator does not know the node that asked, or knows it as gone",
        "it heals by itself when the node's facts arrive; if it stays, check the node's NATS url "
        "and permissions",
    ),
    "reuse_off": (
        "the request itself asked for no reuse",
        "send it without the x-kvferry-reuse header",
    ),
    "prefill_down": (
        "no prefill engine answered, so the decode engine computed the prompt",
        "look at the prefill engines' health",
    ),
}


def cause(miss: str) -> Cause:
    """The meaning and the cure of a miss word such as ``too_dear`` or ``diverged@1536``."""
    word, _, at = miss.partition("@")
    known = _CAUSES.get(word)
    if known is None:
        return Cause(
            word=miss,
            meaning=f"the recorded cause is {miss!r}, which this version does not know",
            cure="read the ledger with the kvferry version that wrote it, or newer",
        )
    meaning, cure = known
    if word == "diverged" and at:
        meaning = meaning.replace("that token", f"token {at}")
    return Cause(word=miss, meaning=meaning, cure=cure)


def cause_of(miss: str, asked: Requested | None) -> Cause:
    """The same where the request's own event may tell more than the word."""
    known = cause(miss)
    if known.word != "too_dear" or asked is None or not asked.weighed_from:
        return known
    had = counted(asked.weighed_from, "token")
    meaning = (
        f"its own cache held the first {had} already, and moving what {asked.source} holds beyond "
        "them was predicted to take longer than computing just that"
    )
    return msgspec.structs.replace(known, meaning=meaning)


def words() -> frozenset[str]:
    """Every miss word that has a meaning."""
    return frozenset(_CAUSES)
