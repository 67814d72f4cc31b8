"""Server-sent events as bytes: cut out of a stream as they arrive, never held back."""

from __future__ import annotations

import json
import re

from kvferry_connectors.router.errors import RouterError

DONE = b"data: [DONE]\n\n"
PARAMS = "kv_transfer_params"

_END = re.compile(rb"\r\n\r\n|\n\n|\n\r\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_END_BYTES_MAX = 4
_MARK = PARAMS.encode()


class EventSplitter:
    """Cuts a byte stream into whole events, each with the blank line that ends it."""

    def __init__(self, event_bytes_max: int) -> None:
        self._buffer = bytearray()
        self._event_bytes_max = event_bytes_max

    def feed(self, data: bytes) -> list[bytes]:
        """The events that ``data`` completes, in order.

        Raises:
            RouterError: an event is longer than the bound.
        """
        start = max(0, len(self._buffer) - _END_BYTES_MAX + 1)
        self._buffer += data
        events = []
        begin = 0
        for match in _END.finditer(self._buffer, start):
            events.append(bytes(self._buffer[begin : match.end()]))
            begin = match.end()
        del self._buffer[:begin]
        if len(self._buffer) > self._event_bytes_max:
            raise RouterError(f"a stream event is longer than {self._event_bytes_max} bytes")
        return events

    def rest(self) -> bytes:
        """What is left after the stream's end: an event that nobody closed, or nothing."""
        return bytes(self._buffer)


def event_data(event: bytes) -> bytes:
    """The event's ``data`` lines, joined; empty if it has none."""
    lines = [line[5:] for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def data_event(value: object) -> bytes:
    """An event whose data is ``value`` as JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def take_params(event: bytes) -> tuple[bytes, object]:
    """The event as the client may see it, and the ``kv_transfer_params`` taken out of it.

    An event without them is returned byte for byte. One that names them and is no JSON is
    dropped, for it cannot be cleaned.
    """
    if _MARK not in event:
        return event, None
    cleaned, params = take_from_json(event_data(event))
    if cleaned is None:
        return b"", None
    return b"data: " + cleaned + b"\n\n", params


def take_from_json(content: bytes) -> tuple[bytes | None, object]:
    """Like :func:`take_params` for a JSON document; ``None`` if it cannot be read."""
    if _MARK not in content:
        return content, None
    try:
        value = json.loads(content)
    except ValueError:
        return None, None
    if not isinstance(value, dict) or PARAMS not in value:
        return content, None
    params = value.pop(PARAMS)
    return json.dumps(value, separators=(",", ":")).encode(), params
