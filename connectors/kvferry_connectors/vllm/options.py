"""What ``kv_connector_extra_config`` may hold, checked by name."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from kvferry.core.retention_settings import SHARE_MAX
from kvferry.errors import ConfigError
from kvferry.ports.backend import Verify


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connector's options. All have defaults that work on one host."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The ledger. When nothing answers there the engine serves without sharing."""
    nats_credentials: dict[str, str] = {}
    """``user`` and ``password``, or ``token``, or ``nkey_seed_file``, or ``creds_file``;
    ``tls_ca_file``, ``tls_cert_file`` and ``tls_key_file`` for TLS; ``inbox_prefix``."""
    node: str = ""
    """This engine's name in the ledger; default ``<host>-<first 6 digits of engine_id>``."""
    role: str = ""
    """``prefill`` or ``decode``, or any word. Nodes of one role share what their host tiers keep,
    and ``whatif --extra-decode`` adds nodes like those that decode."""
    model_id: str = ""
    """Names the weights where the path cannot, for example ``llama-8b@2026-05``."""
    key: str = ""
    """The cluster key: ``file:<path>`` or ``hex:<64 digits>``; default as in the README."""
    host: str = "127.0.0.1"
    """Where this engine's peer and data servers listen."""
    advertise_host: str = ""
    """The host that other nodes use to reach us; default ``host``."""
    peer_port: int = 0
    """Port of the peer server; 0 takes a free one."""
    backends: tuple[str, ...] = ()
    """Data planes in order of preference; empty takes all that work here, fastest first."""
    backend_options: dict[str, dict[str, Any]] = {}
    """Options of each data plane by its name."""
    verify: str = "sample"
    """Digest of moved blocks: ``off``, ``sample`` or ``full``."""
    min_pull_tokens: int = 0
    """Do not pull fewer tokens than this; 0 takes one block."""
    plan_deadline_ms: int = 40
    """How long a request may wait for a plan."""
    pin_timeout_ms: int = 1_000
    """How long a request may wait for a source's first answer."""
    pin_ms: int = 10_000
    """How long a source keeps a pin without a renewal."""
    transfer_timeout_ms: int = 30_000
    """How long a transfer may take in all; then the request recomputes. Where the source still
    computes the blocks: how long none may be added."""
    handover_timeout_ms: int = 120_000
    """How long a request may wait for another engine that computes its prompt."""
    handover_start: float = 0.5
    """Share of a prompt that the other engine has computed when this one allocates its blocks;
    at the latest when the last part is being computed."""
    lease_budget: float = 0.10
    """Share of this engine's KV blocks that leases may hold; 0 leases nothing."""
    lease_ms: int = 30_000
    """How long a lease lasts: a prefill's blocks for the decode that follows, or a session's whose
    next turn is likely while memory is short. It is renewed while that pays."""
    retain_max_ms: int = 600_000
    """A request may ask for its blocks to be leased for so long at most; 0 lets none ask."""
    free_watermark: float = 0.05
    """Leases end while fewer blocks than this share of the pool are free."""
    host_tier_bytes: int = 0
    """Host memory of this engine, over all ranks, for blocks that its cache is about to lose; 0
    does without. On GPUs it is pinned."""
    host_copy_mb_per_s: int = 4_000
    """Blocks are copied there at no more than this rate, on each rank."""
    hint_ttl_s: int = 3_600
    """How long a hint in a reply may be used."""
    parent_load_failure_policy: str = ""
    """Under MultiConnector: say ``recompute`` once the top level has
    ``kv_load_failure_policy=recompute``; without it this engine only exports."""

    @property
    def advertised(self) -> str:
        """The host name that goes into addresses."""
        return self.advertise_host or self.host

    def lease_blocks(self, pool: int) -> int:
        """Blocks of a pool of so many that leases may hold."""
        return int(pool * self.lease_budget) if self.lease_ms > 0 else 0

    def watermark_blocks(self, pool: int) -> int:
        """Blocks of a pool of so many below which leases end."""
        return int(pool * self.free_watermark)


def parse(raw: Mapping[str, Any] | None) -> Options:
    """Check ``kv_connector_extra_config``.

    Raises:
        ConfigError: naming the option and the cure.
    """
    given = dict(raw or {})
    known = set(Options.__struct_fields__)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"kv_connector_extra_config: unknown option {name!r}{hint} "
                f"Known: {', '.join(sorted(known))}"
            )
    try:
        options = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"kv_connector_extra_config: {error}") from error
    _check(options)
    return options


CREDENTIALS = (
    "user",
    "password",
    "token",
    "nkey_seed_file",
    "creds_file",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "inbox_prefix",
)


def check_credentials(given: Mapping[str, str]) -> None:
    """
    Raises:
        ConfigError: ``nats_credentials`` has an entry that means nothing.
    """
    for name in given:
        if name not in CREDENTIALS:
            raise ConfigError(
                f"nats_credentials: unknown entry {name!r}; known: {', '.join(CREDENTIALS)}"
            )


def _check(options: Options) -> None:
    check_credentials(options.nats_credentials)
    allowed = [mode.value for mode in Verify]
    if options.verify not in allowed:
        raise ConfigError(f"verify={options.verify!r}: use one of {', '.join(allowed)}")
    for name in ("lease_budget", "free_watermark"):
        value = getattr(options, name)
        if not 0 <= value <= SHARE_MAX:
            raise ConfigError(f"{name}={value}: a share of the pool between 0 and {SHARE_MAX}")
    if not 0 <= options.handover_start <= 1:
        raise ConfigError(f"handover_start={options.handover_start}: a share between 0 and 1")
    for name in (
        "plan_deadline_ms",
        "pin_timeout_ms",
        "pin_ms",
        "transfer_timeout_ms",
        "handover_timeout_ms",
    ):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name}={getattr(options, name)}: must be at least 1 millisecond")
    if options.host_tier_bytes < 0:
        raise ConfigError(f"host_tier_bytes={options.host_tier_bytes}: 0, or so many bytes")
    if options.host_copy_mb_per_s < 1:
        raise ConfigError(
            f"host_copy_mb_per_s={options.host_copy_mb_per_s}: must be at least 1; for no host "
            "tier set host_tier_bytes to 0"
        )
    for name in ("lease_ms", "retain_max_ms"):
        if getattr(options, name) < 0:
            raise ConfigError(
                f"{name}={getattr(options, name)}: milliseconds, 0 or more; 0 leases nothing"
            )
    if options.parent_load_failure_policy not in ("", "recompute"):
        raise ConfigError(
            f"parent_load_failure_policy={options.parent_load_failure_policy!r}: leave it empty "
            "or, once the top level has kv_load_failure_policy=recompute, say 'recompute'"
        )


def node_name(options: Options, engine_id: str) -> str:
    """The node's name: as configured, else one that two hosts do not share."""
    return options.node or default_node_name(engine_id)


def default_node_name(engine_id: str) -> str:
    """A node's name where none is configured: one that two hosts do not share."""
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    short = "".join(c if c.isalnum() else "-" for c in host.split(".")[0])
    return f"{short}-{engine_id.replace('-', '')[:6]}"
