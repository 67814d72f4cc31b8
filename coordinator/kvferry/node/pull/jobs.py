"""What a pull is told and what it answers."""

from __future__ import annotations

import msgspec

from kvferry.node.pull.choice import Chosen
from kvferry.ports.backend import Verify


class PullJob(msgspec.Struct, frozen=True):
    """Read blocks ``start``, ``start + 1``, ... of a prompt into ``target_blocks``.

    ``hashes`` are the full 32-byte chain hashes of exactly these blocks, or of the prompt from
    its first block on, at least as far as these blocks go.
    """

    transfer: str
    request: str
    address: str
    """``host:port`` of the source's peer server."""
    incarnation: str
    """Of the source; empty accepts any."""
    hashes: tuple[bytes, ...]
    start: int
    target_blocks: tuple[int, ...]
    rank: int
    ranks: int
    verify: Verify
    deadline_s: float
    """Seconds from the submission on."""
    follow: str = ""
    """Name of the source's prefill that writes these blocks, if it still goes on."""

    def wanted(self) -> tuple[bytes, ...]:
        """``wanted()[i]`` is the chain hash of what belongs into ``target_blocks[i]``.

        Raises:
            ValueError: hashes and target blocks do not fit each other.
        """
        count = len(self.target_blocks)
        if len(self.hashes) == count:
            wanted = self.hashes
        else:
            wanted = self.hashes[self.start : self.start + count]
        if not count or len(wanted) != count or self.start < 0:
            raise ValueError(
                f"{len(self.hashes)} hashes do not fit {count} target blocks from {self.start} on"
            )
        return wanted


class PullResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a pull ended. Nothing writes into a target block any more."""

    transfer: str
    request: str
    ok: bool
    count: int = 0
    """Target blocks with valid KV, from the first on."""
    failed_blocks: tuple[int, ...] = ()
    """Target blocks without: all of them unless ``ok``, the rest after a partial grant."""
    stage: str = ""
    """Where it failed: ``pin``, ``read`` or ``settle``."""
    reason: str = ""
    """As in ``transfer_failed``: ``void``, ``digest``, ``refused``, ``unreachable``, ..."""
    detail: str = ""
    fence: str = ""
    """How the backend was made unable to touch the blocks, if a read had to be ended."""
    backend: str = ""
    """The one that moved most."""
    chosen: Chosen | None = None
    """The backend for this pair from now on, where this pull chose it."""
    bytes: int = 0
    verified_blocks: int = 0
    host_blocks: int = 0
    """Of ``count``, those that came from the source's host tier."""
    pin_ms: float = 0.0
    read_ms: float = 0.0
    settle_ms: float = 0.0
    total_ms: float = 0.0
