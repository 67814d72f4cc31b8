"""The demo's client: asks the router as any OpenAI client would, and looks at the clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.settings import MODEL_NAME


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        ttft_ms: until the client saw the first token; of an answer that is not streamed, until
            it saw the answer.
        request: the router's name of the turn.
        line: the ``x-kvferry`` header.
    """

    tokens: tuple[int, ...]
    ttft_ms: float
    request: str
    line: str


class Refused(DemoError):
    """The router answered with an error.

    Attributes:
        status: of HTTP.
        retry_after_s: when to ask again, as it says; 0 where it does not.
        request: its name of the turn.
    """

    def __init__(self, answer: httpx.Response, text: str) -> None:
        super().__init__(f"the router answered {answer.status_code}: {text[:500]}")
        self.status = answer.status_code
        self.retry_after_s = int(answer.headers.get("retry-after", 0))
        self.request = answer.headers.get("x-kvferry-request", "")


def completion(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """A greedy request for exactly ``tokens`` tokens."""
    return {
        "model": MODEL_NAME,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


class Client:
    """Speaks to one OpenAI server; ``clock`` gives seconds."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._http = http
        self._clock = clock
        self._url = f"{url}/v1/completions"

    async def ask(
        self,
        prompt: Sequence[int],
        *,
        tokens: int,
        stream: bool,
        salt: str = "",
        reuse: bool = True,
        wishes: Mapping[str, object] | None = None,
        params: Mapping[str, object] | None = None,
    ) -> Answer:
        """One turn.

        Args:
            salt: requests of different salts share no KV.
            reuse: whether P may take anything from history.
            wishes: the body's ``kvferry`` field, for a router.
            params: the body's ``kv_transfer_params``, for an engine.

        Raises:
            DemoError: the answer is an error or incomplete.
        """
        body = completion(prompt, tokens) | {"stream": stream}
        if salt:
            body["cache_salt"] = salt
        if wishes:
            body["kvferry"] = dict(wishes)
        if params:
            body["kv_transfer_params"] = dict(params)
        headers = {} if reuse else {"x-kvferry-reuse": "off"}
        began = self._clock()
        try:
            async with self._http.stream("POST", self._url, json=body, headers=headers) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    raise Refused(answer, text)
                read = self._read_stream if stream else self._read_whole
                got, first = await read(answer)
        except httpx.HTTPError as error:
            raise DemoError(f"asking {self._url}: {type(error).__name__} {error}") from error
        if len(got) != tokens:
            raise DemoError(f"asked for {tokens} tokens and got {len(got)}")
        return Answer(
            tuple(got),
            (first - began) * 1000,
            answer.headers.get("x-kvferry-request", ""),
            answer.headers.get("x-kvferry", ""),
        )

    async def fill(self, prompt: Sequence[int]) -> None:
        """Somebody else's request, whose answer does not matter.

        Raises:
            DemoError: it failed.
        """
        try:
            answer = await self._http.post(self._url, json=completion(prompt, 2))
        except httpx.HTTPError as error:
            raise DemoError(f"asking {self._url}: {type(error).__name__} {error}") from error
        if answer.status_code != 200:
            raise DemoError(f"{self._url} answered {answer.status_code}: {answer.text[:500]}")

    async def _read_whole(self, answer: httpx.Response) -> tuple[list[int], float]:
        value = json.loads(await answer.aread())
        return list(value["choices"][0]["token_ids"]), self._clock()

    async def _read_stream(self, answer: httpx.Response) -> tuple[list[int], float]:
        tokens: list[int] = []
        first = 0.0
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            value = json.loads(data)
            if "error" in value:
                raise DemoError(f"the stream broke off: {value['error']}")
            for choice in value.get("choices", ()):
                new = choice.get("token_ids") or ()
                if new and not first:
                    first = self._clock()
                tokens += new
        return tokens, first
