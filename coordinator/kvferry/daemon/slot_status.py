"""Asking a TileRT decode server whether it is idle."""

from __future__ import annotations

import asyncio
import http.client
import json
from urllib.parse import urlsplit

IDLE, BUSY, UNREACHABLE = "idle", "busy", "unreachable"
ANSWER_BYTES_MAX = 64 * 1024


async def decode_status(url: str, timeout_s: float) -> str:
    """What ``GET /decode_status`` of the server at ``url`` says: ``idle``, ``busy``, or
    ``unreachable`` where nothing that can be understood comes within about ``timeout_s``."""
    return await asyncio.to_thread(_ask, url, timeout_s)


def _ask(url: str, timeout_s: float) -> str:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/decode_status")
            answer = connection.getresponse()
            said = json.loads(answer.read(ANSWER_BYTES_MAX))
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return UNREACHABLE
    status = said.get("status") if isinstance(said, dict) else None
    return status if status in (IDLE, BUSY) else UNREACHABLE
