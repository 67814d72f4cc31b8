"""Create the ledger's streams where they are missing, and leave those alone that exist."""

from __future__ import annotations

from typing import Any

from kvferry.cli.checks.server import jetstream_api
from kvferry.ledger.jetstream import JetStreamLedger
from kvferry.ledger.streams import OBJECTS_STREAM
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM

_NS = 1_000_000_000


async def create_missing(ledger: JetStreamLedger, replicas: int) -> None:
    """Streams of an operator keep the bounds that the operator gave them.

    Args:
        ledger: where.
        replicas: copies of a stream that has to be created; existing ones decide otherwise.

    Raises:
        LedgerRefused: a stream of that name is not ours, or we may not create it.
    """
    present: dict[str, dict[str, Any]] = {}
    for stream in (FACTS_STREAM, BLOCKS_STREAM, OBJECTS_STREAM):
        info = await jetstream_api(ledger, f"STREAM.INFO.{stream}")
        if "config" in info:
            present[stream] = info["config"]
    if len(present) == 3:
        return
    limits: dict[str, int] = {"replicas": replicas}
    for stream, field in (
        (FACTS_STREAM, "facts_max_bytes"),
        (BLOCKS_STREAM, "blocks_max_bytes"),
        (OBJECTS_STREAM, "objects_max_bytes"),
    ):
        if stream in present:
            limits[field] = int(present[stream]["max_bytes"])
            limits["replicas"] = int(present[stream]["num_replicas"])
    for stream, field in ((FACTS_STREAM, "facts_max_age_s"), (BLOCKS_STREAM, "blocks_max_age_s")):
        if stream in present:
            limits[field] = int(present[stream]["max_age"]) // _NS
    await ledger.ensure_streams(**limits)
