"""Stands in for vLLM as prefill: vLLM's CPU build runs no model that TileRT decodes.

It answers as vLLM answers a request for one token with ``return_token_ids``, and what it does with
a request's KV is up to the test: ``send`` gets the mark and the prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kvferry_connectors.tilert.marks import Mark, read

Send = Callable[[Mark, list[int]], Awaitable[None]]
FIRST = 5


@dataclass
class PrefillStandIn:
    """An HTTP server with vLLM's endpoints.

    Attributes:
        send: takes a claimed request's KV to its node.
        got: bodies of requests, in order.
        marks: of those that had one.
        message: of a chat's reply; ``None`` makes it the first token's text.
        finish: why the one token was the last.
        status: answered in place of 200, before anything is sent.
        said: what the connector says in the reply of a claimed request.
    """

    send: Send
    got: list[dict[str, Any]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    message: dict[str, Any] | None = None
    finish: str = "length"
    status: int = 200
    said: dict[str, Any] | None = None

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/health", self._health),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.got.append(body)
        if self.status != 200:
            return JSONResponse({"error": {"message": "prefill says no"}}, self.status)
        chat = request.url.path.endswith("chat/completions")
        prompt = prompt_ids(body, chat)
        params = body.get("kv_transfer_params") or {}
        if "tilert" in params:
            self.marks.append(read(params))
            await self.send(self.marks[-1], prompt)
        return JSONResponse(self._reply(body, chat, prompt))

    def _reply(self, body: dict[str, Any], chat: bool, prompt: list[int]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish, "token_ids": [FIRST]}
        if chat:
            choice["message"] = self.message or {"role": "assistant", "content": "x"}
        else:
            choice |= {"text": "x", "prompt_token_ids": prompt}
        reply: dict[str, Any] = {"id": "p-1", "model": body["model"], "choices": [choice]}
        if chat:
            reply["prompt_token_ids"] = prompt
        if self.said is not None:
            reply["kv_transfer_params"] = {"tilert": self.said}
        return reply


def prompt_ids(body: dict[str, Any], chat: bool) -> list[int]:
    """The prompt as tokens: given as such, or one for each byte."""
    if chat:
        return list("".join(m["content"] for m in body["messages"]).encode())
    prompt = body["prompt"]
    return list(prompt.encode()) if isinstance(prompt, str) else prompt
