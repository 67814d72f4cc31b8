"""What a decode node is started with, checked by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvferry.errors import ConfigError
from kvferry_backends.host_tier.memory import check_budget
from kvferry_connectors.vllm.options import Options, check_credentials

WITHIN_MS_MAX = 60_000


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The node's own options; TileRT's are TileRT's.

    Raises:
        ConfigError: naming the option and the cure.
    """

    node: str
    """Its name in the ledger; the router calls it the same."""
    nats_url: str
    nats_credentials: dict[str, str] = field(default_factory=dict)
    """As ``KVFerryConnector`` has them."""
    key: str = ""
    """The cluster key: ``file:<path>`` or ``hex:<64 digits>``."""
    space: str = ""
    """The one space whose blocks are kept; empty takes that of the first prompt."""
    host_tier_bytes: int
    retain_max_ms: int = 600_000
    """A request may ask for its blocks to be kept for so long at most; 0 lets none ask."""
    within_ms: int = 500
    """How long an answer's end may be held up by copying the generated rows out of the engine."""
    host: str = "127.0.0.1"
    """Where peers and their reads are served."""
    advertise_host: str = ""
    peer_port: int = 0
    backends: tuple[str, ...] = ()
    """Data planes in order of preference; empty takes all that work here."""
    backend_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of each data plane by its name."""

    def __post_init__(self) -> None:
        if not self.nats_url:
            raise ConfigError("--nats is empty: without a ledger nobody would find what is kept")
        if self.host_tier_bytes < 1:
            raise ConfigError(
                f"--host-tier-bytes {self.host_tier_bytes}: blocks are kept there; give it as many "
                "bytes of this host's memory as can be spared"
            )
        if not 1 <= self.within_ms <= WITHIN_MS_MAX:
            raise ConfigError(f"--return-within-ms {self.within_ms} is not 1 to {WITHIN_MS_MAX}")
        if self.retain_max_ms < 0:
            raise ConfigError(
                f"--retain-max-ms {self.retain_max_ms}: milliseconds, 0 or more; 0 lets no request "
                "ask for its blocks to be kept"
            )
        check_credentials(self.nats_credentials)
        check_budget(self.host_tier_bytes)

    def planes(self) -> Options:
        """The same as what starts data planes takes it."""
        return Options(
            host=self.host,
            advertise_host=self.advertise_host,
            peer_port=self.peer_port,
            backends=self.backends,
            backend_options=self.backend_options,
        )
