"""What an engine process is told about its ledger, and what it says of itself."""

from __future__ import annotations

import msgspec

from kvferry.errors import ConfigError
from kvferry.ledger.credentials import without_secrets
from kvferry.ledger.subjects import token


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ledger is and how patient to be with it.

    Times end in their unit. Raises :class:`kvferry.errors.ConfigError` naming the option.
    """

    nats_url: str
    """For example ``nats://127.0.0.1:4222``. Empty: run without a ledger."""
    node: str
    """The engine's name; one process at a time may hold it."""
    user: str = ""
    password: str = ""
    token: str = ""
    nkey_seed_file: str = ""
    creds_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    inbox_prefix: str = "_INBOX"
    """Where replies come to, for users whose permissions name one, as ``_INBOX.p0``."""
    connect_timeout_s: float = 5.0
    reconnect_min_s: float = 0.2
    reconnect_max_s: float = 5.0
    plan_deadline_ms: float = 40.0
    """A plan that is later than this is none."""
    hedge_ms: float = 5.0
    """After so long without an answer a second replica is asked too."""
    plans_max: int = 1024
    """Plans that may be asked for at the same time."""
    breaker_failures: int = 5
    """So many plans in a row without an answer open the breaker, each asked after the last one
    failed ..."""
    breaker_open_s: float = 2.0
    """... for so long at the most, and for an eighth of it at first."""
    replica_silent_s: float = 3.0
    """A coordinator replica that was not heard for so long, and for no shorter than a plan may
    take, is not asked."""
    heartbeat_s: float = 1.0
    poll_ms: float = 10.0
    """How soon the agent looks into the outbox of an engine that just began or just stopped."""
    busy_poll_ms: float = 100.0
    """How often it looks while the engine runs on and on: facts that come meanwhile share a
    message, and each look interrupts the engine's Python for a moment."""
    idle_poll_ms: float = 50.0
    """How often it looks into an empty one."""
    batch_events_max: int = 256
    detail_wait_ms: float = 100.0
    """Detail events wait about so long for others to share their message."""
    window_messages_max: int = 64
    """Messages of one lane that are sent before their acknowledgements are awaited."""
    resync_pause_s: float = 3.0
    """A resync asked for so soon after the last one is a repetition and ignored."""

    def __post_init__(self) -> None:
        if not self.node:
            raise ConfigError("option node is empty; give each engine a name, for example p0")
        token(self.node, "node")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"option {name} is {value!r}; use a number above zero")
        if self.reconnect_max_s < self.reconnect_min_s:
            raise ConfigError(
                f"option reconnect_max_s is {self.reconnect_max_s}, below reconnect_min_s "
                f"{self.reconnect_min_s}; raise it"
            )

    def __repr__(self) -> str:
        """Without secrets."""
        return f"NodeSettings(node={self.node!r}, nats_url={without_secrets(self.nats_url)!r})"


_POSITIVE = (
    "connect_timeout_s",
    "reconnect_min_s",
    "reconnect_max_s",
    "plan_deadline_ms",
    "hedge_ms",
    "plans_max",
    "breaker_failures",
    "breaker_open_s",
    "replica_silent_s",
    "heartbeat_s",
    "poll_ms",
    "busy_poll_ms",
    "idle_poll_ms",
    "batch_events_max",
    "detail_wait_ms",
    "window_messages_max",
    "resync_pause_s",
)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself when it joins; see :class:`kvferry.core.events.NodeJoined`."""

    space: str
    incarnation: str
    address: str = ""
    """``host:port`` of the peer server; empty for nodes without KV, as routers."""
    block_size: int = 0
    components: dict[str, str] = {}
    backends: tuple[str, ...] = ()
    blocks: int = 0
    block_bytes: int = 0
    host_blocks: int = 0
    warnings: tuple[str, ...] = ()
    version: str = ""
    role: str = ""
    lease_blocks: int = -1
    lease_ms: int = 0
    watermark_blocks: int = 0
    min_pull_tokens: int = 0
    retain_max_ms: int = -1

    def __post_init__(self) -> None:
        token(self.space, "space")
        if not self.incarnation:
            raise ConfigError("an identity needs the incarnation of its process, 16 hex digits")
