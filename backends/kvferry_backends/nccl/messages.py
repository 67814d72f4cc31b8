"""What the two ends of a pair say to each other besides the blocks.

One control conversation per transfer (:mod:`kvferry_backends.control`)::

    target                                   source
    opening: grant, blocks, Want        ->
                                        <-   Go, once the grant is checked
    receives and scatters chunks        <=   gathers and sends chunks, over the communicator
                                        <-   end, once all chunks have left

A communicator is named by a token and counts its transfers; both ends must agree on both, so
they post their chunks in one order. Whatever goes wrong after Go ends the communicator on both
sides, and the next transfer, whose token or number the source does not know, makes a new one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kvferry.errors import BackendError

PROTOCOL = 1


class PeerDescription(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a source says of itself; travels as the opaque bytes of ``Backend.describe``."""

    protocol: int
    address: str
    instance: str
    """This backend's life: its address may later belong to another process."""
    gpu: str
    nccl: str
    blocks: int
    widths: tuple[int, ...]
    """Bytes of a block in each span."""
    slot_blocks: int
    """The most blocks that one chunk may have."""


class Want(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How the target wants the blocks that its opening names."""

    protocol: int
    target: str
    """The instance that asks."""
    widths: tuple[int, ...]
    chunk_blocks: int
    link: str = ""
    """The token of the communicator that the target has or had last; empty at first."""
    number: int = -1
    """Transfers that went over it; negative if the target has given it up."""


class Go(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Permitted: the source begins to send."""

    link: str
    number: int
    unique_id: bytes = b""
    """Names the communicator to make; empty where the target's own is good."""


MessageT = TypeVar("MessageT", Want, Go)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Want | Go | PeerDescription) -> bytes:
    return _encoder.encode(message)


def decode(body: bytes, shape: type[MessageT]) -> MessageT:
    """The other end's message.

    Raises:
        BackendError: it is not one.
    """
    try:
        return msgspec.msgpack.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise BackendError(f"not a {shape.__name__} message: {error}") from error
