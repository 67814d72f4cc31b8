"""The answer to one client, over ASGI: a whole one, or a stream with nothing held back."""

from __future__ import annotations

import time

from starlette.types import Send

from kvferry_connectors.router.errors import Answer, error_object
from kvferry_connectors.router.sse import DONE, data_event


class Reply:
    """Sends an answer once.

    Attributes:
        headers: added to whatever is sent.
        status: what was sent; 0 while nothing was.
        ended: the client has been given everything, so its leaving is no loss.
        first_byte: ``time.monotonic()`` of the first body byte, or ``None``.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.headers: dict[str, str] = {}
        self.status = 0
        self.ended = False
        self.first_byte: float | None = None

    @property
    def started(self) -> bool:
        return self.status != 0

    async def whole(self, answer: Answer) -> None:
        """Sends ``answer`` and ends."""
        self.ended = True
        headers = {**answer.headers, "content-length": str(len(answer.content))}
        await self._start(answer.status, headers)
        await self._body(answer.content, more=False)

    async def stream(self, events: bytes) -> None:
        """Sends events now; the first call begins the stream."""
        if not self.started:
            # The second header keeps proxies such as nginx from collecting events.
            await self._start(
                200,
                {
                    "content-type": "text/event-stream; charset=utf-8",
                    "cache-control": "no-cache",
                    "x-accel-buffering": "no",
                },
            )
        await self._body(events, more=True)

    async def end_stream(self, events: bytes) -> None:
        """Sends the last events and ends."""
        self.ended = True
        await self.stream(events)
        await self._body(b"", more=False)

    async def break_stream(self, message: str) -> None:
        """Tells the client inside a begun stream that it ended early, and ends it."""
        await self._body(data_event(error_object(502, "upstream_error", message)), more=True)
        await self._body(DONE, more=False)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        raw = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in {**headers, **self.headers}.items()
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, content: bytes, *, more: bool) -> None:
        if self.first_byte is None and content:
            self.first_byte = time.monotonic()
        await self._send({"type": "http.response.body", "body": content, "more_body": more})
