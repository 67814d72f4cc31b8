"""What the two ends of a read tell each other besides the blocks.

::

    target                            source
    Ask (in the opening)          ->
                                  <-  Begin
    direct: reads the blocks
            Done                  ->
    packed:                       <-  Ready n: the first n chunks lie, or lay, in their slots
            Taken n               ->  the first n chunks have been read: their slots are free
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.errors import BackendError

PROTOCOL = 1


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a source says of itself; travels as the opaque bytes of ``Backend.describe``."""

    protocol: int
    address: str
    """Where reads are asked for."""
    instance: str
    """This backend's life, and the name of its agent."""
    host: str
    """Which machine since which boot."""
    rdma: bool
    """Whether that machine has a device for RDMA."""
    kind: str
    device: int
    blocks: int
    spans: tuple[tuple[int, int, int], ...]
    """Address, stride and length of each span."""
    slot_bytes: int
    """The largest chunk that it can pack; 0 where it does not pack."""
    metadata: bytes
    """NIXL's own: how to connect, and the keys of the registered memory."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """How the target wants to read."""

    packed: bool
    chunk_blocks: int
    """Blocks of each chunk; 0 where nothing is packed."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """How it is going to be: packed only if that was asked for and a ring is free."""

    packed: bool
    ring: int = 0
    """Address of the first slot."""
    slot_bytes: int = 0
    slots: int = 0


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The first ``chunks`` chunks are packed; chunk n lies in slot ``n % slots``."""

    chunks: int


class Taken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """The first ``chunks`` chunks have been read."""

    chunks: int


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """All blocks have been read."""


Word: TypeAlias = Ask | Begin | Ready | Taken | Done

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(
    Ask | Begin | Ready | Taken | Done
)


def encode(word: Word | PeerDescription) -> bytes:
    return _encoder.encode(word)


def decode(body: bytes) -> Word:
    """One word of the other end.

    Raises:
        BackendError: it is none.
    """
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BackendError(f"the other end's words cannot be read: {error}") from error
