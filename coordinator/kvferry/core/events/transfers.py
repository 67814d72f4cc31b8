"""What happened to transfers: requested, transferred or failed, and the pin at the source."""

from __future__ import annotations

from kvferry.core.events.base import Event


class Requested(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A target wants a run: the plan it uses with its numbers, or why none (the miss).

    ``transfer`` is empty for a miss, and then ``miss`` says why: ``nothing_held``,
    ``diverged@N`` (N is the token), ``node_left``, ``space_mismatch``, ``bad_hint``,
    ``expired_hint``, ``not_offered``, ``too_dear``, ``too_short``, ``busy``, ``paused``,
    ``observe``, ``plan_late``, ``prefill_late``, ``no_coordinator``, ``peer_unreachable``,
    ``unshareable``, ``policy_unset``, ``outbox_full``, ``local``, ``reuse_off``, ``unused``,
    ``aborted``. A request whose transfer failed ends with ``transfer_failed``.
    """

    request: str
    transfer: str = ""
    source: str = ""
    source_incarnation: str = ""
    wanted: int = 0
    """Full blocks of the prompt."""
    local_tokens: int = 0
    granted: int = 0
    """Blocks that the source granted, counted from the prompt's first block."""
    backend: str = ""
    basis: str = ""
    """``hint`` or ``plan``; ``handover`` where the source still computed the blocks; ``host`` for
    the node's own host tier; ``told`` where what the coordinator had told spared the plan."""
    predicted_ms: float = 0.0
    """To move what is pulled, or what was found too dear to pull, ``queue_ms`` included; 0 where it
    was not known. By a hint it is what the node had been advised, without any queue."""
    recompute_ms: float = 0.0
    """To compute what is pulled, or what was found too dear to pull."""
    options: tuple[str, ...] = ()
    """The sources that the plan offered."""
    miss: str = ""
    session: str = ""
    external_id: str = ""
    queue_ms: float = 0.0
    """Part of ``predicted_ms``: because of what the two nodes moved already."""
    doubt: float = 0.0
    """Relative standard error of ``predicted_ms``."""
    prefill_ms: float = 0.0
    """To compute the whole prompt; what ``request_ended`` says of a request without a transfer."""
    model: int = 0
    """Version of the predictions (:data:`kvferry.core.cost.MODEL`); 0 where there are none."""
    upto: bytes = b""
    """Short hash of the last sampled block among those granted: who wants the same prefix may
    wait for this transfer."""
    hinted: str = ""
    """The offer that the request's hint named, whether it was followed or not; empty without a
    hint, and where the hint was not genuine."""
    tenant: str = ""
    """Tag of the request's ``cache_salt``, the same on all nodes of a cluster; empty without a
    salt. Nobody without the cluster key learns the salt from it."""
    position: int = 0
    """Stream sequence of the facts that were known when this was decided: to the coordinator of a
    plan, or of what it had told or advised. 0 where it had no part in it."""
    waited_ms: float = 0.0
    """For how long the request had waited for its turn when it got its plan."""
    tail: bytes = b""
    """Short hash of the last sampled block of the prompt: what it was, also where its end leaves
    no new offer."""
    weighed_from: int = 0
    """The tokens that the node had when it weighed by :func:`kvferry.core.advising.weigh_rest`
    whether the rest of what a hint named is worth moving, as known at ``position``. 0: all that the
    hint named was weighed, as though the node had none of it."""
    tried: bool = False
    """That rest was found too dear, and a part of it moves to tell how fast the link is now."""


class Transferred(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A run arrived, its source answered ``intact``, and the request uses it."""

    transfer: str
    request: str
    source: str
    start: int
    count: int
    tokens: int
    bytes: int
    backend: str
    pin_ms: float = 0.0
    read_ms: float = 0.0
    settle_ms: float = 0.0
    total_ms: float = 0.0
    verify: str = "off"
    verified_blocks: int = 0
    host_blocks: int = 0
    """Of ``count``, those that the source had in its host tier. Where the source is the node
    itself, all of them: then nothing crossed a link and no pin was needed."""


class TransferFailed(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A transfer ended without use; the request recomputes.

    ``stage``: ``pin``, ``read``, ``settle``, ``use``. ``reason``: ``void``, ``digest``,
    ``refused``, ``busy``, ``unreachable``, ``deadline``, ``aborted``, ``error``, ``node_left``,
    ``unused`` (the scheduler took fewer tokens than offered).
    """

    transfer: str
    request: str
    source: str
    stage: str
    reason: str
    detail: str = ""
    fence: str = ""
    """How the backend was made unable to touch the blocks again, for example ``socket_closed``."""
    total_ms: float = 0.0


class PinEnded(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A source's view of a pin's end. ``how``: ``intact``, ``void``, ``abort``, ``deadline``,
    ``refused``, ``closed``."""

    transfer: str
    target: str
    granted: int
    how: str
    held_ms: float = 0.0
    detail: str = ""
