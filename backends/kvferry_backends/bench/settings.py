"""What a measurement is told, checked by option name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvferry.errors import ConfigError
from kvferry.ports.backend import Verify
from kvferry_backends.registry import names

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MEMORY = ("host", "cuda")
BLOCK_BYTES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 2 * MIB)
POOL_BYTES = {"host": 256 * MIB, "cuda": 1 * GIB}
BLOCK_BYTES_MAX = 64 * MIB
LAYERS_MAX = 1024
BLOCKS_MIN = 8
"""In a pool: a read moves a quarter of it."""
SECONDS_MAX = 60.0

_SIZE = re.compile(r"(\d+) ?(|B|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the measurement; both ends get the same."""

    memory: str = "host"
    backends: tuple[str, ...] = ()
    """In order; empty for all that are installed."""
    options: dict[str, dict[str, Any]] = {}
    """Backend options by backend name."""
    block_bytes: tuple[int, ...] = BLOCK_BYTES
    """Of a block in one layer."""
    layers: int = 1
    """Pieces of a block, each in a layer's own memory."""
    pool_bytes: int = 0
    """0 for the memory's usual size."""
    seconds: float = 1.0
    """For the reads of one row, and about as long for its raw limit."""
    verify: Verify = Verify.OFF

    @property
    def pool(self) -> int:
        """Bytes of the pool on each end."""
        return self.pool_bytes or POOL_BYTES[self.memory]

    def blocks(self, block_bytes: int) -> int:
        """Blocks of a pool, where a layer holds ``block_bytes`` of each."""
        return self.pool // (block_bytes * self.layers)


def check(settings: Settings) -> Settings:
    """The settings, with all backends named.

    Raises:
        ConfigError: one of them is wrong; the text names the option.
    """
    if settings.memory not in MEMORY:
        raise ConfigError(f"--memory {settings.memory} is not one of {', '.join(MEMORY)}")
    installed = names()
    unknown = [name for name in (*settings.backends, *settings.options) if name not in installed]
    if unknown:
        raise ConfigError(
            f"no backend is called {', '.join(unknown)}; installed are: {', '.join(installed)}"
        )
    if not 0 < settings.seconds <= SECONDS_MAX:
        raise ConfigError(f"--seconds {settings.seconds:g} is not within 0 to {SECONDS_MAX:g}")
    if not 1 <= settings.layers <= LAYERS_MAX:
        raise ConfigError(f"--layers {settings.layers} is not 1 to {LAYERS_MAX}")
    for size in settings.block_bytes:
        if size < 8 or size % 8 or size > BLOCK_BYTES_MAX:
            raise ConfigError(
                f"--block-bytes {size} is not a multiple of 8 up to {shown(BLOCK_BYTES_MAX)}"
            )
        if settings.blocks(size) < BLOCKS_MIN:
            layers = f"{settings.layers} layers of " if settings.layers > 1 else ""
            raise ConfigError(
                f"--pool-bytes {shown(settings.pool)} holds {settings.blocks(size)} blocks of "
                f"{layers}{shown(size)}; give room for {BLOCKS_MIN} or take the block size out"
            )
    return msgspec.structs.replace(settings, backends=settings.backends or installed)


def parse_size(option: str, text: str) -> int:
    """``65536``, ``64KiB``, ``2 MiB`` or ``1GiB`` in bytes.

    Raises:
        ConfigError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise ConfigError(f"{option} {text!r} is no size; write it as 65536, 64KiB, 2MiB or 1GiB")
    return int(found[1]) * _UNITS[found[2].lower()]


def parse_sizes(option: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Sizes given one by one or separated by commas, without repetitions."""
    parts = [part for text in texts for part in text.split(",") if part.strip()]
    return tuple(dict.fromkeys(parse_size(option, part) for part in parts))


def parse_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Names given one by one or separated by commas, without repetitions."""
    return tuple(dict.fromkeys(n.strip() for text in texts for n in text.split(",") if n.strip()))


def shown(size: int) -> str:
    """Bytes in the largest unit that leaves them whole."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def merged(
    options: Mapping[str, Mapping[str, Any]], name: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of backend ``name``, over these defaults."""
    return {**defaults, **options.get(name, {})}
