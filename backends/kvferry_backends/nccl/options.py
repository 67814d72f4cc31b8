"""What an operator can set, checked by name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvferry.errors import ConfigError
from kvferry_backends.options import convert_options
from kvferry_backends.tcp.options import check_listening

COMMUNICATORS_MAX = 64
CHUNK_MIN_BYTES = 64 * 1024
CHUNK_MAX_BYTES = 1024 * 1024 * 1024
SLOTS_MAX = 16
CTAS_MAX = 32
TIMEOUT_MAX_S = 3600.0


class NcclOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the nccl backend."""

    listen_host: str = "127.0.0.1"
    """IP address on which grants and permissions are exchanged; NCCL chooses its own."""
    listen_port: int = 0
    """Port for that; 0 takes a free one."""
    advertise: str = ""
    """``ip:port`` under which peers reach us, where it differs (NAT)."""
    communicators: int = 8
    """The most that are kept for reading, and the most for serving. NCCL takes some 50 to 100 MB
    of device memory for each, besides the ring."""
    chunk_bytes: int = 32 * 1024 * 1024
    """Size of a slot of the ring; a chunk holds as many whole blocks as fit."""
    slots: int = 3
    """Slots of a ring, so that packing and moving overlap."""
    max_ctas: int = 0
    """The most thread blocks that NCCL's kernels may take from the engine; 0 leaves it to NCCL."""
    timeout_s: float = 30.0
    """Longest that one read is served, whatever deadline the peer asks for."""

    def slot_blocks(self, block_bytes: int) -> int:
        """Blocks of this size that a slot holds: at least one."""
        return max(1, self.chunk_bytes // block_bytes)


def parse_options(options: Mapping[str, object]) -> NcclOptions:
    """``options`` as checked values.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; the text names it.
    """
    parsed = convert_options("nccl", options, NcclOptions)
    check_listening("nccl", parsed.listen_host, parsed.listen_port, parsed.advertise)
    _check_ranges(parsed)
    return parsed


def _check_ranges(options: NcclOptions) -> None:
    ranges = (
        ("communicators", options.communicators, 1, COMMUNICATORS_MAX),
        ("chunk_bytes", options.chunk_bytes, CHUNK_MIN_BYTES, CHUNK_MAX_BYTES),
        ("slots", options.slots, 2, SLOTS_MAX),
        ("max_ctas", options.max_ctas, 0, CTAS_MAX),
    )
    for name, value, least, most in ranges:
        if not least <= value <= most:
            raise ConfigError(f"nccl backend: {name} {value} is not {least} to {most}")
    if not 0 < options.timeout_s <= TIMEOUT_MAX_S:
        raise ConfigError(
            f"nccl backend: timeout_s {options.timeout_s} is not above 0 and up to {TIMEOUT_MAX_S}"
        )
