"""The client's body, and what is made of it for P and for D."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

from kvferry_connectors.router.sse import PARAMS


class Kind(Enum):
    """Which of the two generating endpoints; the value is its path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


Body = dict[str, object]

# P's one token is thrown away. Only what would fail, cost or end that token's request early is
# taken out: a stop string, for one, ends it as aborted, and then it returns no hint. Whatever
# can change the prompt stays (tools, tool_choice, response_format, template arguments), because
# D may be given P's token ids.
_NOT_FOR_PREFILL = (
    "stream_options",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "echo",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "best_of",
    "use_beam_search",
    "return_token_ids",
)


def read_body(content: bytes) -> Body:
    """The client's JSON object without anything that only the router may say.

    Raises:
        ValueError: not a JSON object.
    """
    body = json.loads(content)
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    body.pop(PARAMS, None)
    # vLLM copies these beside kv_transfer_params into the engine's request.
    arguments = body.get("vllm_xargs")
    if isinstance(arguments, dict):
        arguments.pop(PARAMS, None)
    return body


def one_prompt(kind: Kind, body: Body) -> bool:
    """Whether the request has a single prompt; hints name the KV of one."""
    prompt = body.get("prompt")
    if kind is Kind.CHAT or not isinstance(prompt, list) or len(prompt) < 2:
        return True
    return all(type(item) is int for item in prompt)


def may_hand_over(kind: Kind, body: Body) -> bool:
    """Whether D may be given P's token ids in place of rendering the chat again.

    Truncation depends on ``max_tokens``, which differs for P, and an echo needs the messages.
    vLLM itself ignores the ids when messages hold media.
    """
    if kind is not Kind.CHAT:
        return False
    return not body.get("echo") and body.get("truncate_prompt_tokens") is None


def kv_part(
    request: str, session: str, turn: int, hint: Mapping[str, object] | None
) -> dict[str, object]:
    """The ``kvferry`` part of a request's ``kv_transfer_params``, for the ``turn``-th turn."""
    part: dict[str, object] = {"id": request, "session": session, "turn": turn}
    if hint is not None:
        part["hint"] = hint
    return part


def prefill_body(
    kind: Kind,
    body: Body,
    part: Mapping[str, object],
    want_tokens: bool,
    params: Mapping[str, object] | None = None,
) -> bytes:
    """P's request: the same prompt, one token, no stream.

    Args:
        params: what other connectors of P are told, beside ``part``.
    """
    made = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    made |= {"stream": False, "n": 1, "max_tokens": 1}
    made[PARAMS] = {"kvferry": part, **(params or {})}
    if kind is Kind.CHAT:
        made["max_completion_tokens"] = 1
    if want_tokens:
        made["return_token_ids"] = True
    return json.dumps(made).encode()


def decode_body(body: Body, part: Mapping[str, object], token_ids: list[int] | None) -> bytes:
    """D's request: the client's own, with the hint and perhaps P's token ids."""
    params: dict[str, object] = {"kvferry": part}
    if token_ids is not None:
        params["prompt_token_ids"] = token_ids
    return json.dumps({**body, PARAMS: params}).encode()


def read_token_ids(reply: Mapping[str, object]) -> list[int] | None:
    """The prompt's token ids in P's chat reply, if they are there and whole."""
    return token_ids(reply.get("prompt_token_ids"))


def token_ids(value: object) -> list[int] | None:
    """A list of token ids; ``None`` if it is something else, or empty."""
    if not isinstance(value, list) or not value or any(type(item) is not int for item in value):
        return None
    return value
