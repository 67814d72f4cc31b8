"""Requests to the JetStream API, with its errors as ours."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import msgspec

from kvferry.errors import LedgerRefused, LedgerUnavailable
from kvferry.ledger.replies import Replies
from kvferry.ports.log import Stored

PREFIX = "$JS.API"
CALL_WAIT_S = 5.0
MESSAGE_ID = "Nats-Msg-Id"

STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
RETRY_CODES = frozenset({408, 429, 500, 503})
"""HTTP-like codes of states that pass: overload, an election, a stream that recovers."""
NO_JETSTREAM = frozenset({10039, 10076})
NO_ROOM = frozenset({10023, 10028, 10047})
STORE_FAILED = 10077
"""Any failure to store: passes, unless the text says that a maximum is reached."""

_DECODER = msgspec.json.Decoder(dict[str, Any])


class ApiError(LedgerRefused):
    """The JetStream API answered with an error that will not pass by itself."""

    def __init__(self, what: str, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{what}: {description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class ApiBusy(LedgerUnavailable):
    """The JetStream API answered with an error that passes: ask again."""


def api_error(what: str, error: dict[str, Any]) -> ApiError | ApiBusy:
    """The error part of an answer as an exception; ``what`` says what was asked."""
    code, err_code = int(error.get("code", 0)), int(error.get("err_code", 0))
    description = str(error.get("description", "no description"))
    if err_code in NO_JETSTREAM:
        description += "; start nats-server with JetStream (-js) and enable it for this account"
    elif err_code in NO_ROOM:
        description += "; raise max_file_store of the server or the account, or lower our bounds"
    elif code in RETRY_CODES and not (err_code == STORE_FAILED and "maximum" in description):
        return ApiBusy(f"{what}: {description} ({err_code})")
    return ApiError(what, code, err_code, description)


class JetStreamApi:
    """``call(subject, body)`` and nothing else."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    async def call(
        self, subject: str, body: dict[str, Any] | None = None, *, wait_s: float | None = None
    ) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>`` and return the decoded answer.

        ``wait_s`` is :data:`CALL_WAIT_S` unless given.

        Raises:
            ApiError: refused; carries the server's codes.
            LedgerUnavailable: no answer in time.
        """
        payload = msgspec.json.encode(body) if body is not None else b""
        data = await self._replies.request(
            f"{PREFIX}.{subject}", payload, wait_s=wait_s or CALL_WAIT_S
        )
        try:
            answer = _DECODER.decode(data)
        except msgspec.MsgspecError as error:
            raise LedgerUnavailable(f"the answer to {subject} is not JSON: {error}") from error
        if "error" in answer:
            raise api_error(subject, answer["error"])
        return answer


def stored_of(message: dict[str, Any]) -> Stored:
    """The message of a ``STREAM.MSG.GET`` answer."""
    # Nanoseconds are more than fromisoformat takes.
    head, _, fraction = str(message["time"]).rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(head).replace(tzinfo=datetime.UTC)
    return Stored(
        seq=int(message["seq"]),
        subject=str(message["subject"]),
        data=base64.b64decode(message.get("data", "")),
        stored_ms=int(moment.timestamp()) * 1000 + int((fraction + "000")[:3]),
    )


def message_id_of(message: dict[str, Any]) -> str:
    """The id in the headers of a ``STREAM.MSG.GET`` answer; empty if it has none."""
    headers = base64.b64decode(message.get("hdrs", "")).decode(errors="replace")
    for line in headers.split("\r\n"):
        key, _, value = line.partition(":")
        if key.lower() == MESSAGE_ID.lower():
            return value.strip()
    return ""
