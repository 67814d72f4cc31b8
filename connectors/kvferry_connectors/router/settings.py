"""What a router is told: its engines, its bounds and where its ledger is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvferry.errors import ConfigError
from kvferry_connectors.router.tilert.settings import TilertSettings
from kvferry_connectors.vllm.options import check_credentials

if TYPE_CHECKING:
    from kvferry.node.agent.settings import NodeSettings

RETAIN_S_MAX = 86_400.0

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class EngineUrl:
    """One engine: its node name and the root of its HTTP server, without ``/v1``."""

    name: str
    url: str


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Everything that :func:`kvferry_connectors.router.app.create_app` needs.

    Raises:
        ConfigError: a pool is empty, two engines share a name, or a bound is not positive.
    """

    prefill: tuple[EngineUrl, ...]
    decode: tuple[EngineUrl, ...]
    node: str = "router"
    """The router's own name in the ledger; two routers need two names."""
    nats_url: str = ""
    """Where turns are recorded; empty records nothing."""
    nats_credentials: dict[str, str] = field(default_factory=dict)
    """Who the router is to the ledger's server, as ``KVFerryConnector`` has it."""
    engine_api_key: str = ""
    """Sent to engines as a bearer token in place of what the client sent."""
    hand_over_tokens: bool = True
    """Give D the token ids that P made of a chat, so that both certainly see one prompt."""
    overlap: bool = False
    """Send a turn to P and D at the same time, so that D pulls while P still computes."""
    connect_timeout_s: float = 3.0
    probe_every_s: float = 2.0
    probe_timeout_s: float = 5.0
    probe_timeouts_max: int = 2
    """Unanswered probes in a row until an engine counts as down; a refused one counts at once."""
    lost_after_s: float = 30.0
    """An engine down for so long gets its waiting requests cancelled: it may be frozen."""
    attempts_max: int = 2
    """Engines of one pool that one turn tries. Small, so that a request that kills engines
    cannot take the whole pool with it."""
    affinity_slack: int = 8
    """How many more requests in flight than the idlest D a session's own D may have."""
    turns_max: int = 16384
    """Turns remembered for recognising conversations and their hints."""
    retain_max_s: float = 600.0
    """A client may ask that its session's KV is kept for so long at most; 0 lets none ask. The
    engines have a bound of their own, ``retain_max_ms``."""
    body_bytes_max: int = 64 * 1024 * 1024
    event_bytes_max: int = 16 * 1024 * 1024
    tilert: TilertSettings | None = None
    """TileRT decode nodes for requests that ask for them. Leases of their slots come from a
    coordinator, so this needs ``nats_url``."""
    drain_s: float = 30.0
    """How long a stopping router lets requests in flight finish."""

    def __post_init__(self) -> None:
        for pool, engines in (("prefill", self.prefill), ("decode", self.decode)):
            if not engines:
                raise ConfigError(f"no {pool} engine: give at least one --{pool} URL")
        names = [engine.name for engine in (*self.prefill, *self.decode)]
        if self.tilert is not None:
            names += [node.name for node in self.tilert.nodes]
            if not self.nats_url:
                raise ConfigError(
                    "TileRT nodes are leased from a coordinator: give --nats URL, or start one "
                    "with kvferry up"
                )
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"two engines are called {name!r}: name them apart, as in {name}2=URL"
                )
        if not _NAME.fullmatch(self.node):
            raise ConfigError(f"node {self.node!r}: use letters, digits, _ and -")
        check_credentials(self.nats_credentials)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if value <= 0 and one.name not in (
                "affinity_slack",
                "drain_s",
                "retain_max_s",
            ):
                raise ConfigError(f"{one.name} is {value}: it must be more than 0")
        if not 0 <= self.retain_max_s <= RETAIN_S_MAX:
            raise ConfigError(
                f"retain_max_s is {self.retain_max_s}: use 0 to {RETAIN_S_MAX:g} seconds"
            )

    def in_ledger(self) -> NodeSettings:
        """What the router is to its ledger.

        Raises:
            ConfigError: a credential cannot be used.
        """
        # Imported here, so that a router without a ledger runs without NATS.
        from kvferry.node.agent.credentials import settings_from

        return settings_from(
            self.nats_url, self.node, self.nats_credentials, "--nats, --node or a credential"
        )


def parse_engines(values: Sequence[str], prefix: str) -> tuple[EngineUrl, ...]:
    """``name=url`` pairs or bare urls; the bare ones are called ``<prefix><position>``.

    Raises:
        ConfigError: an entry is not an http or https url, or its name cannot stand in a subject.
    """
    return tuple(_parse(value, f"{prefix}{index}") for index, value in enumerate(values))


def _parse(value: str, default_name: str) -> EngineUrl:
    name, separator, url = value.partition("=")
    if not separator or "://" in name:
        name, url = default_name, value
    if not _NAME.fullmatch(name):
        raise ConfigError(f"engine name {name!r} in {value!r}: use letters, digits, _ and -")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"engine {value!r}: expected http://host:port or name=http://host:port")
    return EngineUrl(name, url.rstrip("/").removesuffix("/v1"))
