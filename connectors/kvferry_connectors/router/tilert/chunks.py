"""OpenAI's answers, made of a node's tokens: a whole one, or the events of a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvferry_connectors.router.bodies import Kind
from kvferry_connectors.router.errors import Answer
from kvferry_connectors.router.sse import DONE, data_event

_PREFIX = {Kind.CHAT: "chatcmpl", Kind.COMPLETIONS: "cmpl"}
_WHOLE = {Kind.CHAT: "chat.completion", Kind.COMPLETIONS: "text_completion"}
_CHUNK = {Kind.CHAT: "chat.completion.chunk", Kind.COMPLETIONS: "text_completion"}


@dataclass
class Maker:
    """Makes the answer to one request.

    Attributes:
        turn: the router's name for the request.
        prompt_ids: the prompt's tokens.
        with_ids: the client wants token ids.
        with_usage: it wants usage at the end of its stream.
        output_ids: the answer's tokens so far.
    """

    kind: Kind
    turn: str
    model: str
    prompt_ids: list[int]
    with_ids: bool = False
    with_usage: bool = False
    output_ids: list[int] = field(default_factory=list)
    _created: int = field(default_factory=lambda: int(time.time()))
    _begun: bool = False
    _prompt_told: bool = False

    def chunk(self, text: str, ids: list[int]) -> bytes:
        """Events for what came next."""
        self.output_ids += ids
        return self._opening() + data_event(self._chunk(self._piece(text), None, ids))

    def end(self, finish: str) -> bytes:
        """The stream's last events."""
        last = data_event(self._chunk(self._piece(""), finish, []))
        if self.with_usage:
            last += data_event({**self._frame(_CHUNK), "choices": [], "usage": self.usage()})
        return self._opening() + last + DONE

    def whole(self, text: str, finish: str) -> Answer:
        """An answer that is not streamed; the tokens are :attr:`output_ids`."""
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.kind is Kind.CHAT:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        value = {**self._frame(_WHOLE), "choices": [choice], "usage": self.usage()}
        if self.with_ids:
            choice["token_ids"] = self.output_ids
            self._tell_prompt(value, choice)
        content = json.dumps(value, separators=(",", ":")).encode()
        return Answer(200, content, {"content-type": "application/json"})

    def usage(self) -> dict[str, int]:
        prompt, output = len(self.prompt_ids), len(self.output_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }

    def _opening(self) -> bytes:
        """A chat's stream begins with the role."""
        if self._begun or self.kind is Kind.COMPLETIONS:
            return b""
        self._begun = True
        return data_event(self._chunk({"delta": {"role": "assistant", "content": ""}}, None, []))

    def _piece(self, text: str) -> dict[str, object]:
        if self.kind is Kind.CHAT:
            return {"delta": {"content": text} if text else {}}
        return {"text": text}

    def _chunk(
        self, piece: Mapping[str, object], finish: str | None, ids: list[int]
    ) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": 0,
            **piece,
            "logprobs": None,
            "finish_reason": finish,
        }
        value = {**self._frame(_CHUNK), "choices": [choice]}
        if self.with_ids:
            choice["token_ids"] = ids
            self._tell_prompt(value, choice)
        return value

    def _tell_prompt(self, value: dict[str, object], choice: dict[str, object]) -> None:
        """Once. vLLM puts a chat's prompt beside its choices, a completion's into its choice."""
        if not self._prompt_told:
            self._prompt_told = True
            place = value if self.kind is Kind.CHAT else choice
            place["prompt_token_ids"] = self.prompt_ids

    def _frame(self, names: Mapping[Kind, str]) -> dict[str, object]:
        return {
            "id": f"{_PREFIX[self.kind]}-{self.turn}",
            "object": names[self.kind],
            "created": self._created,
            "model": self.model,
        }
