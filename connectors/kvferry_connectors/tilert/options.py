"""What ``kv_connector_extra_config`` may hold, checked by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvferry.errors import ConfigError
from kvferry_connectors.tilert.profiles import Profile, find
from kvferry_connectors.tilert.wire import NIXL
from kvferry_connectors.vllm.options import check_credentials

NODE_LIMIT_S = 120.0
"""After so long without a word a decode node gives a connection up."""
STAGING_DEVICES = ("", "cpu", "cuda")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connector's options."""

    profile: str | dict[str, Any]
    """The model as TileRT knows it: ``dsv32``, ``glm5``, ``glm5_no_mtp``, ``glm5_2``; or a
    profile's fields."""
    senders: int = 8
    """Ranks that a decode node waits for: its ``TILERT_PD_SENDERS``."""
    transport: str = NIXL
    """How bytes move; the decode node's ``--transport``. Only ``nixl``."""
    writer_options: dict[str, Any] = {}
    """``devices`` and ``environment`` for UCX."""
    staging_bytes: int = 4 << 30
    """Staging memory of each rank, allocated at the first send."""
    staging_device: str = ""
    """``cpu`` or ``cuda``; empty takes the KV cache's."""
    staging_wait_ms: int = 5_000
    """How long a request may wait for staging memory before it is prefilled and refused."""
    connect_timeout_ms: int = 3_000
    """How long a decode node may take to accept a connection, and for each answer."""
    admission_window_ms: int = 3_000
    """How long a busy decode node is asked again."""
    send_timeout_ms: int = 100_000
    """How long a send may take from its order on; a decode node gives up after 120 s."""
    nats_url: str = ""
    """The ledger that sends are recorded in, where this engine has no ``KVFerryConnector``; empty
    records nothing. Beside one they are its node's facts."""
    nats_credentials: dict[str, str] = {}
    """As ``KVFerryConnector`` has them."""
    node: str = ""
    """This engine's name in that ledger; default ``<host>-<first 6 digits of engine_id>``."""


def parse(given: Mapping[str, Any] | None) -> tuple[Options, Profile]:
    """Checked options, and the profile that they name.

    Raises:
        ConfigError: naming the option and the cure.
    """
    try:
        options = msgspec.convert(dict(given or {}), Options)
    except msgspec.ValidationError as error:
        raise ConfigError(f"kv_connector_extra_config: {error}") from error
    if options.transport != NIXL:
        raise ConfigError(
            f"transport={options.transport!r}: only nixl is spoken here; start the decode server "
            "with --transport nixl"
        )
    if options.staging_device not in STAGING_DEVICES:
        raise ConfigError(f"staging_device={options.staging_device!r} is not cpu or cuda")
    for name, value, most in (
        ("senders", options.senders, 64),
        ("staging_bytes", options.staging_bytes, 1 << 44),
        ("connect_timeout_ms", options.connect_timeout_ms, int(NODE_LIMIT_S * 1000)),
        ("admission_window_ms", options.admission_window_ms, int(NODE_LIMIT_S * 1000)),
        ("send_timeout_ms", options.send_timeout_ms, int(NODE_LIMIT_S * 1000)),
    ):
        if not 1 <= value <= most:
            raise ConfigError(f"{name}={value} is not 1 to {most}")
    if options.nats_credentials and not options.nats_url:
        raise ConfigError("nats_credentials without nats_url: say where the ledger is")
    check_credentials(options.nats_credentials)
    if options.staging_wait_ms < 0:
        raise ConfigError(f"staging_wait_ms={options.staging_wait_ms} is negative")
    return options, find(options.profile)
