"""The frames of a peer session: a 4-byte big-endian length, then one msgpack struct.

A session begins with :class:`Hello` from the client, :class:`Challenge` from the server,
:class:`Proof`, and :class:`Welcome` or :class:`Refused`. Both sides prove that they hold the
cluster key without sending it. After that the client sends requests and the server answers each
in order. Every request may be repeated: a repeated one gets the same answer.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

PROTOCOL = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024


class Frame(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The base of all frames."""


class Hello(Frame, frozen=True, kw_only=True):
    """Client: who am I."""

    protocol: int
    node: str
    space: str
    incarnation: str
    nonce: bytes
    components: dict[str, str]
    client: str = ""
    """Tells the processes of one node apart; a name that a peer client keeps over reconnects."""


class Challenge(Frame, frozen=True, kw_only=True):
    """Server: who am I, and prove yourself. ``proof`` shows that the server holds the key."""

    node: str
    space: str
    incarnation: str
    nonce: bytes
    proof: bytes


class Proof(Frame, frozen=True, kw_only=True):
    """Client: my proof over both nonces."""

    proof: bytes


class Welcome(Frame, frozen=True, kw_only=True):
    """Server: the session stands."""


class Refused(Frame, frozen=True, kw_only=True):
    """Server: no. ``reason`` is a stable word.

    ``bad_key``, ``protocol``, ``space_mismatch`` (``detail`` names the components that differ),
    ``incarnation`` (not the process life that was asked for), ``ended``, ``not_held``,
    ``paused``, ``busy``, ``not_ready``.
    """

    reason: str
    detail: str = ""


class Pin(Frame, frozen=True, kw_only=True):
    """Claim the longest offered prefix of ``hashes``, for ``deadline_ms``."""

    transfer: str
    incarnation: str
    """Of the source, as the target knows it; empty to accept any."""
    hashes: tuple[bytes, ...]
    """Full 32-byte chain hashes from block ``start`` of the prompt on."""
    start: int = 0
    deadline_ms: int = 10_000
    ranks: int = 1
    """Target ranks that will each say done."""
    host: bool = False
    """The target can read blocks of the source's host tier too."""


class Granted(Frame, frozen=True, kw_only=True):
    """``blocks[i]`` holds the KV of ``hashes[i]``; fewer than asked means a partial grant."""

    transfer: str
    incarnation: str
    blocks: tuple[int, ...]
    deadline_ms: int
    grants: tuple[bytes, ...]
    """Per source rank: a token that the rank's data server accepts for exactly these blocks."""
    backends: tuple[dict[str, bytes], ...]
    """Per source rank: backend name to what that backend says of itself."""
    host_first: int = 0
    """Blocks numbered from here on are slots of the source's host tier, where that counts from 0;
    0 if none is granted."""
    host_backends: tuple[dict[str, bytes], ...] = ()
    """As ``backends``, of those that serve the host tier."""


class Renew(Frame, frozen=True, kw_only=True):
    """Keep the pin for another ``deadline_ms`` from now."""

    transfer: str
    deadline_ms: int


class Done(Frame, frozen=True, kw_only=True):
    """Rank ``rank`` has its bytes: are they what the pin promised?"""

    transfer: str
    rank: int = 0


class Abort(Frame, frozen=True, kw_only=True):
    """The target gives up; an unknown transfer leaves a tombstone."""

    transfer: str
    why: str = ""


class Live(Frame, frozen=True, kw_only=True):
    """After a reconnect: these transfers of mine live, every other pin of mine ends."""

    transfers: tuple[str, ...]


class Followed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prefill of the source, and what the target knew of it when it asked last."""

    name: str
    """Under which the source's request was published."""
    blocks: int
    """Full blocks of the target's prompt."""
    tail: bytes
    """Full chain hash of the last of them: both prompts must be one."""
    ready: int = 0
    state: str = ""


class Follow(Frame, frozen=True, kw_only=True):
    """How far are these prefills? Answered as soon as it is further than ``ready`` and ``state``
    say, and after ``wait_ms`` in any case, so it belongs on a session of its own."""

    prefills: tuple[Followed, ...]
    wait_ms: int = 0


class Progress(Frame, frozen=True, kw_only=True):
    """Answer to follow, in its order: so many blocks may be pinned, and what is to be expected.

    States are those of :mod:`kvferry.node.export.published`.
    """

    ready: tuple[int, ...]
    states: tuple[str, ...]


class Settled(Frame, frozen=True, kw_only=True):
    """Answer to done: ``intact`` or ``void``."""

    transfer: str
    intact: bool


class Ok(Frame, frozen=True, kw_only=True):
    """Answer to renew, abort and live."""


AnyFrame: TypeAlias = (
    Hello
    | Challenge
    | Proof
    | Welcome
    | Refused
    | Pin
    | Granted
    | Renew
    | Done
    | Abort
    | Live
    | Follow
    | Progress
    | Settled
    | Ok
)
