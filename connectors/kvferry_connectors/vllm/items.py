"""What the engine thread hands over: a few plain tuples, cheap to make, read on another thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvferry_connectors.vllm.tracked import Tracked

_ENDINGS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "aborted",
}


def ending(status: str) -> str:
    """How a request ended, from the name of vLLM's status."""
    return _ENDINGS.get(status, "error")


class Arrived(NamedTuple):
    """A request came in."""

    tracked: Tracked


class Step(NamedTuple):
    """One engine step was scheduled: request id to tokens, the engine's own mapping."""

    at: float
    scheduled: dict[str, int]
    preempted: Any
    """Ids of requests that lost their blocks in this step, or None."""


class Finished(NamedTuple):
    """A request left the engine."""

    at: float
    tracked: Tracked
    outcome: str
    output_tokens: int
    blocks: int
    """Blocks of the request whose KV is complete."""


class Offered(NamedTuple):
    """The first ``len(hashes)`` blocks of a chain are offered from the engine's cache."""

    offer: str
    hashes: list[bytes]
    request: str
    session: str
    tenant: str = ""
    """Tag of the ``cache_salt`` of the request."""


class Leased(NamedTuple):
    """A lease keeps the blocks of ``offer``."""

    lease: str
    offer: str
    ttl_ms: int
    why: str
    """``handover``, ``retain`` or ``expected``."""


class LeaseRenewed(NamedTuple):
    """A lease goes on for ``ttl_ms`` from now."""

    lease: str
    ttl_ms: int
    why: str


class LeaseEnded(NamedTuple):
    """A lease is over."""

    lease: str
    reason: str


class Reused(NamedTuple):
    """The engine handed these offered blocks to somebody else."""

    hashes: list[bytes]


class HostOffered(NamedTuple):
    """The first ``len(hashes)`` blocks of a chain are in the host tier."""

    offer: str
    hashes: list[bytes]
    request: str
    session: str
    tenant: str = ""


class HostEvicted(NamedTuple):
    """The host tier has these blocks no longer."""

    hashes: list[bytes]
    reason: str


class Cleared(NamedTuple):
    """Nothing is offered any more."""

    reason: str
