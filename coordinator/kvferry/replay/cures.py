"""What an operator can do about KV that was not there, and about transfers that failed."""

from __future__ import annotations

ROOM = (
    "give {source} more KV blocks, a larger lease_budget or a host tier (host_tier_bytes), so "
    "that it keeps them until the next turn; `kvferry advise` says how long that is"
)
_FATES: dict[str, str] = {
    "never_produced": "nothing to do for a first turn",
    "evicted": ROOM,
    "evicted_late": ROOM,
    "source_gone": "look at the process and the log of {source}; `kvferry status` says what became "
    "of the node",
    "diverged": "keep earlier turns byte for byte: edited history, stripped reasoning and "
    "timestamps in the system prompt end the common prefix",
    "still_held": "ask for the same again; if it stays, look at the coordinator's lag in "
    "`kvferry status`",
}
_REASONS: dict[tuple[str, str], str] = {
    ("refused", "tenant"): "nothing to do: tenants are kept apart by their cache_salt",
    ("refused", "space"): "`kvferry doctor` names what differs; start both engines with the same "
    "model, revision, dtypes, block size and PYTHONHASHSEED",
    ("refused", "fence"): "it heals with the node's next inventory; if it stays, look at the log "
    "of {source} and at the NATS server, which lost messages of it",
    ("evicted", "paused"): "`kvferry resume` lets {source} offer again",
    ("evicted", "policy"): "`kvferry policy` shows what {source} may keep, and raises it",
    ("evicted", "cleared"): "the prefix cache of {source} was reset: pause sharing before, or "
    "expect the next turns to be computed",
    ("source_gone", "node_closed"): "stop nodes while their sessions are idle, or let the router "
    "move sessions away first",
}
_FAILURES: dict[str, str] = {
    "void": ROOM + "; a slow link makes this likelier",
    "digest": "bytes changed between the memories of {source} and its reader: check the network "
    "cards, cables and memory of both hosts; `kvferry bench link` shows whether it goes on",
    "refused": "the source's word in brackets says why; look at the log of {source}",
    "busy": "spread the sessions over more nodes; `kvferry status` shows what moves now",
    "unreachable": "check that {source} runs, and that its peer and data ports are open from the "
    "reader (`kvferry doctor` tries them)",
    "deadline": "look at the link's rate in `kvferry status`; raise transfer_timeout_ms if it is "
    "as it should be",
    "aborted": "nothing to do: the client went away or the engine gave the request up",
    "unused": "nothing to do: the engine took fewer tokens than it had asked for",
}
_FAILURE = "the request was answered all the same; look at the logs of {source} and of its reader"


def cure_of(how: str, reason: str = "", source: str = "") -> str:
    """What to do about a cause; empty for one that has no cure here.

    Args:
        how: as :attr:`kvferry.replay.stories.MissCause.how` says.
        reason: as :attr:`kvferry.replay.stories.MissCause.reason` says.
        source: the node that had the blocks, as the text is to name it.
    """
    if how == "transfer_failed":
        cure = _FAILURES.get(reason, _FAILURE)
    else:
        known = "evicted" if how == "evicted_late" else how
        cure = _REASONS.get((known, reason), _FATES.get(how, ""))
    return cure.replace("{source}", source or "the source")
