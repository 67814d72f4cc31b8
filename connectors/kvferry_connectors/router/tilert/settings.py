"""Which TileRT nodes a router may use, and its bounds with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

from kvferry.errors import ConfigError
from kvferry.node.slots import IDLE_LIMIT_MS, SlotNode

CONTROL_PORT = 5556
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEYS = ("ctrl", "profile", "idle_limit_s")


@dataclass(frozen=True, kw_only=True)
class TilertSettings:
    """The pool.

    Raises:
        ConfigError: no node, no tokenizer, or a bound is not positive.
    """

    nodes: tuple[SlotNode, ...]
    tokenizer: str
    """``tokenizer.json``, or a folder that holds it and perhaps a ``generation_config.json``,
    whose sampling defaults then count, as they do for vLLM."""
    waiting_max: int = 64
    """Requests that may wait for a slot; one more is answered 429."""
    wait_max_s: float = 30.0
    """How long a request waits for a slot before it is answered 429."""
    kv_wait_s: float = 60.0
    """How long a node waits for a prompt's KV once P has answered."""
    settle_within_s: float = 30.0
    """How long the router tries to learn that a node has given a request up."""
    cancel_within_s: float = 60.0
    """How long a cancelled generation may take to end."""
    foreign_pause_s: float = 10.0
    """How long a node is passed over that somebody else was seen using."""
    status_within_s: float = 3.0
    """How long a node may take to say whether it is idle."""
    close_within_s: float = 10.0
    """How long a stopping router brings open requests at nodes to an end."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("no TileRT node: give at least one --tilert NAME=URL")
        if not self.tokenizer:
            raise ConfigError(
                "TileRT nodes answer with token ids: give --tokenizer PATH, the model's "
                "tokenizer.json or its folder"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value <= 0:
                raise ConfigError(f"{field.name} is {value}: it must be more than 0")


def parse_nodes(values: Sequence[str]) -> tuple[SlotNode, ...]:
    """``NAME=http://host:port[,ctrl=5556][,profile=glm5][,idle_limit_s=120]`` for each node.

    Raises:
        ConfigError: an entry has another form; names the entry and what is wrong with it.
    """
    return tuple(_parse(value) for value in values)


def _parse(value: str) -> SlotNode:
    name, separator, rest = value.partition("=")
    url, *more = rest.split(",")
    if not separator or not _NAME.fullmatch(name):
        raise ConfigError(
            f"--tilert {value!r}: begin with a name of letters, digits, _ and -, as in "
            "t0=http://10.0.0.7:5557"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--tilert {value!r}: expected {name}=http://host:port")
    options = _options(value, more)
    port = _number(value, options, "ctrl", CONTROL_PORT)
    if not 0 < port < 65536 or port != int(port):
        raise ConfigError(f"--tilert {value!r}: ctrl={port:g} is no port")
    idle_ms = _number(value, options, "idle_limit_s", IDLE_LIMIT_MS / 1000) * 1000
    if idle_ms <= 0:
        raise ConfigError(f"--tilert {value!r}: idle_limit_s must be more than 0")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return SlotNode(
        name=name,
        http=url.rstrip("/"),
        control=f"{host}:{int(port)}",
        profile=options.get("profile", ""),
        idle_limit_ms=int(idle_ms),
    )


def _options(value: str, given: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for one in given:
        key, separator, text = one.partition("=")
        if not separator or key not in _KEYS:
            raise ConfigError(f"--tilert {value!r}: {one!r} is none of {', '.join(_KEYS)}")
        options[key] = text
    return options


def _number(value: str, options: dict[str, str], key: str, default: float) -> float:
    try:
        return float(options[key]) if key in options else default
    except ValueError:
        raise ConfigError(f"--tilert {value!r}: {key}={options[key]} is no number") from None


def control_address(node: SlotNode) -> tuple[str, int]:
    """Host and port of a node's receive server, as prefill connects to it."""
    host, _, port = node.control.rpartition(":")
    return host.strip("[]"), int(port)
