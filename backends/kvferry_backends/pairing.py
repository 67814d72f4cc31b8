"""What a backend checks of a peer and of a request before it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kvferry.errors import BackendError, BackendUnavailable
from kvferry.ports.backend import ReadRequest


class Described(Protocol):
    """What every description begins with."""

    @property
    def protocol(self) -> int: ...


DescribedT = TypeVar("DescribedT", bound=Described)


def host_id() -> str:
    """This machine since its last boot: handles and process ids of another one mean nothing here.

    Raises:
        BackendUnavailable: the kernel does not tell.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise BackendUnavailable(f"the kernel's boot id cannot be read: {error}") from error


def decode_description(
    peer: bytes, shape: type[DescribedT], protocol: int, backend: str
) -> DescribedT:
    """A peer's description, as ``backend`` of that ``protocol`` writes it.

    Raises:
        BackendError: it is none, or of another protocol.
    """
    try:
        found = msgspec.msgpack.decode(peer, type=shape)
    except msgspec.MsgspecError as error:
        raise BackendError(f"the peer's {backend} description cannot be read: {error}") from error
    if found.protocol != protocol:
        raise BackendError(
            f"the peer speaks {backend} protocol {found.protocol}, we {protocol}; "
            "run the same kvferry version on both"
        )
    return found


def check_request(
    request: ReadRequest,
    *,
    widths: Sequence[int],
    blocks: int,
    peer_widths: Sequence[int],
    peer_blocks: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The request's source and target blocks, known to fit both pools.

    ``widths`` are the bytes of a block in each span.

    Raises:
        BackendError: lists of different lengths, none at all, another shape of blocks, an id
            outside its pool, or a target block listed twice.
    """
    sources, targets = tuple(request.source_blocks), tuple(request.target_blocks)
    transfer = request.transfer
    if len(sources) != len(targets) or not targets:
        raise BackendError(
            f"transfer {transfer}: {len(sources)} source and {len(targets)} target blocks"
        )
    if tuple(peer_widths) != tuple(widths):
        raise BackendError(
            f"transfer {transfer}: the peer's blocks are laid out as {tuple(peer_widths)} bytes, "
            f"ours as {tuple(widths)}; the two are not of one space"
        )
    for whose, listed, limit in (("source", sources, peer_blocks), ("target", targets, blocks)):
        if min(listed) < 0 or max(listed) >= limit:
            raise BackendError(
                f"transfer {transfer}: {whose} blocks {min(listed)} to {max(listed)} "
                f"are not within that pool of {limit}"
            )
    if len(set(targets)) != len(targets):
        raise BackendError(f"transfer {transfer}: a target block is listed twice")
    return sources, targets
