"""The streams of the ledger: their bounds, and how they are created."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from kvferry.errors import LedgerRefused
from kvferry.ledger.jsapi import STREAM_NOT_FOUND, ApiError, JetStreamApi
from kvferry.ledger.subjects import BLOCKS_SUBJECTS, FACTS_SUBJECTS
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM

_log = logging.getLogger("kvferry.ledger")

MIB = 1024 * 1024
DAY_S, HOUR_S = 86_400, 3_600
DUPLICATE_WINDOW_S = 120
"""A message sent again within it is stored once. Outages may be longer: readers count too."""
OBJECTS_BUCKET = "KVF_OBJECTS"
OBJECTS_STREAM = f"OBJ_{OBJECTS_BUCKET}"
OBJECTS_SUBJECTS = (f"$O.{OBJECTS_BUCKET}.C.>", f"$O.{OBJECTS_BUCKET}.M.>")
_NS = 1_000_000_000


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the ledger may keep."""

    facts_max_bytes: int = 1024 * MIB
    blocks_max_bytes: int = 512 * MIB
    objects_max_bytes: int = 256 * MIB
    facts_max_age_s: int = 7 * DAY_S
    blocks_max_age_s: int = HOUR_S
    replicas: int = 1


def stream_configs(limits: StreamLimits) -> list[dict[str, Any]]:
    """What the server is asked for, one mapping a stream."""
    common: dict[str, Any] = {
        "storage": "file",
        "retention": "limits",
        "num_replicas": limits.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
    }
    ordered = common | {
        "discard": "old",
        "duplicate_window": DUPLICATE_WINDOW_S * _NS,
        "allow_direct": True,
    }
    return [
        ordered
        | {
            "name": FACTS_STREAM,
            "subjects": list(FACTS_SUBJECTS),
            "max_bytes": limits.facts_max_bytes,
            "max_age": limits.facts_max_age_s * _NS,
        },
        ordered
        | {
            "name": BLOCKS_STREAM,
            "subjects": list(BLOCKS_SUBJECTS),
            "max_bytes": limits.blocks_max_bytes,
            "max_age": limits.blocks_max_age_s * _NS,
            "duplicate_window": min(DUPLICATE_WINDOW_S, limits.blocks_max_age_s) * _NS,
        },
        # The layout of NATS object stores, so that `nats object` reads it too.
        common
        | {
            "name": OBJECTS_STREAM,
            "subjects": list(OBJECTS_SUBJECTS),
            "max_bytes": limits.objects_max_bytes,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
    ]


async def ensure(api: JetStreamApi, limits: StreamLimits) -> None:
    """Create the streams, or set their bounds where they exist.

    Raises:
        LedgerRefused: a stream of that name has other subjects, or the server says no.
        LedgerUnavailable: the server cannot say now, as while a cluster elects.
    """
    for config in stream_configs(limits):
        name = config["name"]
        present = await _present(api, config)
        if present is None:
            await _create(api, config)
            continue
        # More replicas than asked for are an operator's decision; fewer are corrected.
        config["num_replicas"] = max(config["num_replicas"], present.get("num_replicas", 1))
        if any(present.get(key) != value for key, value in config.items()):
            # A stream keeps what an operator set beyond our own settings, for example placement.
            await api.call(f"STREAM.UPDATE.{name}", present | config)
            _log.info("set the bounds of stream %s to %d MiB", name, config["max_bytes"] // MIB)


async def create_missing(api: JetStreamApi, replicas: int) -> None:
    """Create the streams that are missing; those that exist keep their operator's bounds.

    Args:
        api: where.
        replicas: copies of a stream that has to be created; existing ones decide otherwise.

    Raises:
        LedgerRefused: as :func:`ensure`.
        LedgerUnavailable: as :func:`ensure`; nothing was created in doubt.
    """
    missing = []
    for config in stream_configs(StreamLimits()):
        present = await _present(api, config)
        if present is None:
            missing.append(config)
        else:
            replicas = present.get("num_replicas", 1)
    for config in missing:
        await _create(api, config | {"num_replicas": replicas})


async def _present(api: JetStreamApi, config: dict[str, Any]) -> dict[str, Any] | None:
    """How our stream is configured; None if there is none of its name."""
    name = config["name"]
    try:
        present: dict[str, Any] = (await api.call(f"STREAM.INFO.{name}"))["config"]
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return None
    if sorted(present.get("subjects", ())) != sorted(config["subjects"]):
        raise LedgerRefused(
            f"stream {name} exists and holds {present.get('subjects')}, not "
            f"{config['subjects']}: it is not kvferry's. Rename that stream, or give kvferry "
            "a NATS account of its own"
        )
    return present


async def _create(api: JetStreamApi, config: dict[str, Any]) -> None:
    await api.call(f"STREAM.CREATE.{config['name']}", config)
    _log.info("created stream %s, at most %d MiB", config["name"], config["max_bytes"] // MIB)
