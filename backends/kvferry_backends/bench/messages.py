"""What the measuring process says to the other one, and what it is told."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvferry.ports.backend import Verify
from kvferry_backends.bench.settings import Settings

PROTOCOL = 2
SCATTERED, CONTIGUOUS = "scattered", "contiguous"
PATTERNS = (SCATTERED, CONTIGUOUS)


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The base of all messages."""


class Open(Message, frozen=True, kw_only=True):
    """Make a pool of blocks of this size, and every backend over it."""

    settings: Settings
    block_bytes: int
    seed: str
    """What the pool is filled with."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of an end."""

    description: bytes
    same_host_only: bool


class Opened(Message, frozen=True, kw_only=True):
    """The pool and its backends stand."""

    host: str
    """This machine since its last boot."""
    what: str
    """The machine in words."""
    device: int
    backends: dict[str, Offer]
    left_out: dict[str, str]
    raw_address: str
    raw_token: bytes


class Measure(Message, frozen=True, kw_only=True):
    """Read from the other end with one backend, and the raw limit beside it."""

    backend: str
    peer: bytes
    """What the other end's backend said of itself."""
    peer_seed: str
    pattern: str
    verify: Verify
    seconds: float
    raw: str
    """``memcpy``, ``device_copy`` or ``stream``."""
    raw_address: str
    raw_token: bytes
    peer_device: int


class Measured(Message, frozen=True, kw_only=True):
    """A row's figures."""

    gb_per_s: float
    raw_gb_per_s: float
    p50_ms: float
    """A read of one block."""
    p99_ms: float
    reads: int
    bytes_per_read: int
    checked_blocks: int
    """Compared byte by byte once, all right."""


class Shut(Message, frozen=True, kw_only=True):
    """Close all backends and give the pool back."""


class Done(Message, frozen=True, kw_only=True):
    """It is shut."""


class Failure(Message, frozen=True, kw_only=True):
    """It could not be done; the text is for people."""

    text: str
    config: bool = False
    """An option is wrong."""


Asked: TypeAlias = Open | Measure | Shut
Answer: TypeAlias = Opened | Measured | Done | Failure
