"""What the engine thread hands over: small things, cheap to make, read on another thread.

A step is a plain tuple, for it comes with every step of the engine and nothing is cheaper to make.
What comes with a request is a struct, made in C: a named tuple's constructor is Python, and costs
the engine's thread two to three times as much. None of them can be part of a cycle, so the garbage
collector need not look at them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from kvferry_connectors.vllm.tracked import Tracked

_ENDINGS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "aborted",
}


def ending(status: str) -> str:
    """How a request ended, from the name of vLLM's status."""
    return _ENDINGS.get(status, "error")


Step: TypeAlias = tuple[float, dict[str, int], Any]
"""One engine step: when it was scheduled (monotonic seconds), request id to tokens (the engine's
own mapping), and the ids of requests that lost their blocks in it, or None."""


class Arrived(msgspec.Struct, frozen=True, gc=False):
    """A request came in."""

    tracked: Tracked


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A request left the engine."""

    at: float
    tracked: Tracked
    outcome: str
    output_tokens: int
    blocks: int
    """Blocks of the request whose KV is complete."""


class Offered(msgspec.Struct, frozen=True, gc=False):
    """The first ``len(hashes)`` blocks of a chain are offered from the engine's cache."""

    offer: str
    hashes: list[bytes]
    request: str
    session: str
    tenant: str = ""
    """Tag of the ``cache_salt`` of the request."""


class Leased(msgspec.Struct, frozen=True, gc=False):
    """A lease keeps the blocks of ``offer``."""

    lease: str
    offer: str
    ttl_ms: int
    why: str
    """``handover``, ``retain`` or ``expected``."""


class LeaseRenewed(msgspec.Struct, frozen=True, gc=False):
    """A lease goes on for ``ttl_ms`` from now."""

    lease: str
    ttl_ms: int
    why: str


class LeaseEnded(msgspec.Struct, frozen=True, gc=False):
    """A lease is over."""

    lease: str
    reason: str


class Reused(msgspec.Struct, frozen=True, gc=False):
    """The engine handed these offered blocks to somebody else."""

    hashes: list[bytes]


class HostOffered(msgspec.Struct, frozen=True, gc=False):
    """The first ``len(hashes)`` blocks of a chain are in the host tier."""

    offer: str
    hashes: list[bytes]
    request: str
    session: str
    tenant: str = ""


class HostEvicted(msgspec.Struct, frozen=True, gc=False):
    """The host tier has these blocks no longer."""

    hashes: list[bytes]
    reason: str


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """Nothing is offered any more."""

    reason: str
