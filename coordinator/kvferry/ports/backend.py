"""The data plane as the connectors see it: register, describe, post, poll, release."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec


class Span(msgspec.Struct, frozen=True):
    """One run of bytes that every block has, for example its page in one layer.

    Block ``b`` occupies ``[address + b * stride, address + b * stride + length)``.
    """

    address: int
    stride: int
    length: int


class Regions(msgspec.Struct, frozen=True):
    """A pool of equal blocks in memory.

    A block's bytes are those of its spans in order. ``owner`` keeps the memory alive.
    """

    spans: tuple[Span, ...]
    blocks: int
    kind: str = "host"
    """``host`` or ``cuda``."""
    device: int = 0
    owner: object = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all spans."""
        return sum(span.length for span in self.spans)


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can do; decides which parts of the contract suite apply."""

    memory: frozenset[str]
    """Kinds of :class:`Regions` that it moves."""
    one_sided: bool
    """The source takes no part in a read: it cannot refuse one, and needs not be running."""
    same_host_only: bool
    fence: str
    """The act after which it can no longer touch a block, for example ``socket_closed``."""
    digest: bool = False
    """Compares blocks as ``ReadRequest.verify`` says; without it ``verified_blocks`` stays 0."""


class Verify(enum.StrEnum):
    """How many blocks of a transfer are compared by digest."""

    OFF = "off"
    SAMPLE = "sample"
    FULL = "full"


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Move ``source_blocks[i]`` of the peer into ``target_blocks[i]`` of ours."""

    transfer: str
    peer: bytes
    """What the peer's backend said of itself (:meth:`Backend.describe`)."""
    grant: bytes
    """The source's signed permission for these blocks; two-sided senders check it."""
    source_blocks: Sequence[int]
    target_blocks: Sequence[int]
    verify: Verify = Verify.SAMPLE
    deadline_s: float = 10.0


class ReadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a read ended. ``error`` empty means every byte is in place."""

    bytes: int = 0
    verified_blocks: int = 0
    read_ms: float = 0.0
    error: str = ""
    """``digest``, ``unreachable``, ``refused``, ``busy`` (refused for now: the source serves as
    much as it may), ``deadline``, ``aborted`` or ``error``."""
    detail: str = ""


class Posted(Protocol):
    """A read under way."""

    def poll(self) -> ReadOutcome | None:
        """The outcome, or None while it runs. Never blocks."""
        ...

    def wait(self, timeout_s: float) -> ReadOutcome | None:
        """Like :meth:`poll`, after waiting for at most ``timeout_s``."""
        ...

    def abort(self) -> ReadOutcome:
        """Stop and fence: after the return no byte of a target block changes any more."""
        ...


Authorize = Callable[[str, bytes, bytes], bool]
"""Called as (transfer, grant, packed source blocks): may these blocks be sent now?"""


class Backend(Protocol):
    """One way to move blocks between two engines. One object per engine rank.

    Constructed as ``Backend(options: dict[str, object])``; raises
    :class:`kvferry.errors.BackendUnavailable` where it cannot work and
    :class:`kvferry.errors.ConfigError` for a wrong option.
    """

    name: str
    capabilities: Capabilities

    def register(self, regions: Regions, authorize: Authorize) -> None:
        """Serve reads of these blocks from now on."""
        ...

    def describe(self) -> bytes:
        """What a peer needs to read from us; opaque to everybody else."""
        ...

    def post(self, request: ReadRequest) -> Posted:
        """Start a read. Returns at once.

        Raises:
            BackendError: the request does not fit the registered regions.
        """
        ...

    def forget(self, peer: bytes) -> None:
        """The process behind this description has ended: drop all that is kept for it.

        Returns at once. Reads under way from it end as ``unreachable``; what they still map is
        unmapped as they end. A peer never met, or bytes that are no description, are ignored.
        """
        ...

    def close(self) -> None:
        """Stop serving, abort every read, join every thread."""
        ...


class BackendFactory(Protocol):
    """What the entry-point group ``kvferry.backends`` holds."""

    def __call__(self, options: dict[str, object]) -> Backend: ...
