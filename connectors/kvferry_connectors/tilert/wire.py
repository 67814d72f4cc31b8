"""TileRT's control protocol: what a sender and a decode node say to each other, and how.

One TCP connection for each (request, sender rank). A frame is a length (4 bytes, big-endian) and
that many bytes of JSON. The node speaks first::

    node    hello     who it is, how it moves bytes, and where its receive buffer lies
    sender  admit     which request, which rank, how long
    node    accept | reject
    sender  writes into the node's memory, then: done
    node    hangs up, which is all that acknowledges ``done``

Nothing in it is authenticated, and the node trusts what it is told: the network between prefill
and decode nodes has to be closed to others.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

import msgspec

from kvferry_connectors.tilert.errors import SendRefused

MAGIC = "tilert-pd"
PROTOCOL_VERSION = 2
NIXL = "nixl"
FRAME_MAX_BYTES = 16 * 1024 * 1024
"""The largest frame that either side takes."""
TRANSIENT = frozenset({"busy", "cancelling"})
"""Rejections after which it is worth asking again."""

_LENGTH = struct.Struct("!I")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A decode node introduces itself. What TileRT adds in later versions is ignored."""

    magic: str
    protocol_version: int = 1
    layout_version: int = 0
    transport: str = ""
    max_seq_len: int = 0
    """Tokens for which each layer has room."""
    busy: bool = False
    """A hint only; what counts is the answer to ``admit``."""
    senders: int = 1
    """Ranks whose ``done`` completes a request."""
    nshards: int = 1
    """Parts of the receive buffer; layer ``i`` lies in part ``i % nshards``."""
    kv_base: int | list[int] = 0
    pe_base: int | list[int] = 0
    ki_base: int | list[int] = 0
    """Address of each plane, for each part where there are several."""
    nixl_meta: str = ""
    """NIXL's description of the node's agent, in base64."""
    nixl_dev: int = 0


class Admit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sender asks to write one request's KV."""

    rid: str
    rank: int
    seq_len: int
    last_prompt_token: int
    admission_window_s: float
    """How long the sender goes on asking."""
    sampling: dict[str, object] | None = None
    prompt_token_ids: tuple[int, ...] = ()
    """From rank 0, where the request has a repetition penalty."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The node's accept or reject."""

    accepted: bool
    rid: str = ""
    rank: int = -1
    generation: int = -1
    error: str = ""
    busy_rid: str = ""
    busy_state: str = ""
    detail: str = ""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte of this rank is in place."""

    rid: str
    rank: int
    generation: int
    done: bool = True


Received = TypeVar("Received", Hello, Answer, Admit, Done)
_encoder = msgspec.json.Encoder()


def encode(message: Hello | Admit | Answer | Done) -> bytes:
    """A message as one frame.

    Raises:
        SendRefused: ``bad_frame``, for one that the other side would not take.
    """
    body = _encoder.encode(message)
    if len(body) > FRAME_MAX_BYTES:
        raise SendRefused(
            "bad_frame",
            f"a message of {len(body)} bytes is above the protocol's {FRAME_MAX_BYTES}",
        )
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes, kind: type[Received]) -> Received:
    """A frame's body as a message.

    Raises:
        SendRefused: ``bad_frame``, naming the field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SendRefused("bad_frame", f"expected {kind.__name__.lower()}: {error}") from error


def receive(connection: socket.socket, kind: type[Received]) -> Received:
    """The next message from a connection that has a timeout.

    Raises:
        SendRefused: ``timeout``, ``unreachable`` or ``bad_frame``.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > FRAME_MAX_BYTES:
        raise SendRefused(
            "bad_frame", f"a message of {length} bytes is above the protocol's {FRAME_MAX_BYTES}"
        )
    return decode(_exactly(connection, length), kind)


def send(connection: socket.socket, message: Hello | Admit | Answer | Done) -> None:
    """Send a message over a connection that has a timeout.

    Raises:
        SendRefused: ``timeout``, ``unreachable`` or ``bad_frame``.
    """
    try:
        connection.sendall(encode(message))
    except TimeoutError as error:
        raise SendRefused("timeout", "the decode node does not read what it is sent") from error
    except OSError as error:
        raise SendRefused("unreachable", f"the connection broke: {error}") from error


def await_end(connection: socket.socket) -> None:
    """Wait until the node hangs up, as it does once it has read ``done``.

    One that is slow to do so has been told all the same.

    Raises:
        SendRefused: ``unreachable``, where it is gone instead.
    """
    try:
        connection.recv(1)
    except TimeoutError:
        return
    except OSError as error:
        raise SendRefused("unreachable", f"the connection broke: {error}") from error


def _exactly(connection: socket.socket, length: int) -> bytes:
    held = bytearray(length)
    view = memoryview(held)
    try:
        while len(view):
            got = connection.recv_into(view)
            if not got:
                raise SendRefused("unreachable", "the decode node hung up in mid-message")
            view = view[got:]
    except TimeoutError as error:
        raise SendRefused("timeout", "the decode node did not answer in time") from error
    except OSError as error:
        raise SendRefused("unreachable", f"the connection broke: {error}") from error
    return bytes(held)
