"""What an operator can set, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kvferry.errors import ConfigError
from kvferry_backends.options import convert_options
from kvferry_backends.tcp.options import check_listening

TIMEOUT_MAX_S = 3600.0
SLOT_MIN_BYTES = 64 * 1024
SLOT_MAX_BYTES = 1024 * 1024 * 1024
SLOTS_MAX = 64
RINGS_MAX = 64
SLOT_BYTES = {"host": 8 * 1024 * 1024, "cuda": 64 * 1024 * 1024}
"""By kind of memory, where nobody says otherwise."""


class NixlOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the nixl backend."""

    listen_host: str = "127.0.0.1"
    """IP address on which reads are asked for. UCX chooses the addresses of the bytes itself."""
    listen_port: int = 0
    """Port for that; 0 takes a free one."""
    advertise: str = ""
    """``ip:port`` under which peers reach us, where it differs (NAT)."""
    devices: tuple[str, ...] = ()
    """Network devices for UCX, for example ``mlx5_0:1`` or ``lo``; it uses, and for TCP listens on,
    all of them otherwise."""
    environment: dict[str, str] = {}
    """``UCX_...`` variables that are set while an agent is made, and only then.
    ``UCX_CUDA_IPC_CACHE`` is ``n`` unless set here or in the process: see ``agent.ENVIRONMENT``."""
    allow_tcp: bool = False
    """Whether hosts without RDMA may be read through UCX over TCP. That is slower than backend
    ``tcp``, and when a source that was frozen in mid-read wakes after its reader has given up, UCX
    ends the source's process."""
    mode: Literal["auto", "direct", "packed"] = "auto"
    """``auto`` takes what is faster by what both have cost so far."""
    slot_bytes: int = 0
    """Size of a staging slot; a chunk of a packed read holds as many whole blocks as fit. 0 takes
    8 MiB of host memory, or 64 MiB of device memory, where a chunk must outlast its messages."""
    slots: int = 4
    """Slots of a ring; with 2 or more, packing, reading and unpacking overlap."""
    rings: int = 2
    """Packed reads under way at one time, given and taken together; each has a ring. 0 never
    packs. The memory is ``rings * slots * slot_bytes``, of the pool's kind."""
    timeout_s: float = 30.0
    """Longest that one read is served, whatever deadline the peer asks for."""


def parse_options(options: Mapping[str, object]) -> NixlOptions:
    """``options`` as checked values.

    Raises:
        ConfigError: an option is unknown, of the wrong type or out of range; the text names it.
    """
    parsed = convert_options("nixl", options, NixlOptions)
    check_listening("nixl", parsed.listen_host, parsed.listen_port, parsed.advertise)
    _check_ranges(parsed)
    return parsed


def _check_ranges(options: NixlOptions) -> None:
    for name, value, least, most in (
        ("slot_bytes", options.slot_bytes or SLOT_MIN_BYTES, SLOT_MIN_BYTES, SLOT_MAX_BYTES),
        ("slots", options.slots, 1, SLOTS_MAX),
        ("rings", options.rings, 0, RINGS_MAX),
    ):
        if not least <= value <= most:
            raise ConfigError(f"nixl backend: {name} {value} is not {least} to {most}")
    if not 0 < options.timeout_s <= TIMEOUT_MAX_S:
        raise ConfigError(
            f"nixl backend: timeout_s {options.timeout_s} is not above 0 and up to {TIMEOUT_MAX_S}"
        )
    if options.mode == "packed" and not options.rings:
        raise ConfigError("nixl backend: mode packed needs rings; set rings to 1 or more")
    foreign = sorted(name for name in options.environment if not name.startswith("UCX_"))
    if foreign:
        raise ConfigError(
            f"nixl backend: environment may set UCX_... only, not {', '.join(foreign)}"
        )
    if not all(options.devices):
        raise ConfigError("nixl backend: devices has an empty name; leave it out")
