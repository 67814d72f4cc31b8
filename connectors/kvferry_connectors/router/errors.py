"""What goes wrong in a turn, and how a client is told: in the shape of OpenAI's errors."""

from __future__ import annotations

import json

from kvferry.errors import KVFerryError


class RouterError(KVFerryError):
    """The root of the router's errors."""


class EngineFailed(RouterError):
    """An engine did not answer, stopped answering, or answered 5xx.

    Attributes:
        engine: its name.
        why: what it did or did not do, without its name.
        answer: its 5xx answer, if there was one.
        reached: false where it is certain that it never saw the request.
    """

    def __init__(
        self, engine: str, why: str, answer: Answer | None = None, *, reached: bool = True
    ) -> None:
        super().__init__(f"{engine} {why}")
        self.engine = engine
        self.why = why
        self.answer = answer
        self.reached = reached


class Answered(RouterError):
    """The turn is over early: this answer goes to the client as it is."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"answered {answer.status}")
        self.answer = answer


class Answer:
    """A whole HTTP answer.

    Attributes:
        status: HTTP status.
        content: body bytes.
        headers: lower-case names and values; always with a content type.
    """

    def __init__(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.status = status
        self.content = content
        self.headers = headers


def error_object(status: int, kind: str, message: str) -> dict[str, object]:
    """OpenAI's error object, with the status as its code as vLLM does."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_answer(
    status: int, kind: str, message: str, headers: dict[str, str] | None = None
) -> Answer:
    """An answer that carries :func:`error_object`."""
    content = json.dumps(error_object(status, kind, message)).encode()
    return Answer(status, content, {"content-type": "application/json", **(headers or {})})


def bad_request(message: str, status: int = 400) -> Answered:
    """The client's fault."""
    return Answered(error_answer(status, "invalid_request_error", message))


def pool_down(pool: str, states: str) -> Answer:
    """503: no engine of a pool can serve.

    Args:
        pool: ``prefill`` or ``decode``.
        states: each engine with its trouble, for the message.
    """
    message = (
        f"no {pool} engine can serve this request ({states}): start one, or check the router's "
        f"--{pool} URLs; the router finds it by itself once its /health answers 200"
    )
    return error_answer(503, "service_unavailable_error", message, {"retry-after": "2"})
