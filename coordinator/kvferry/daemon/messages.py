"""What the CLI asks a coordinator, as JSON on ``kvferry.core.messages.query_subject(replica)``."""

from __future__ import annotations

from typing import Any

import msgspec

from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.errors import CodecError


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One question.

    ``verb``: ``status``, ``spaces``, ``digest`` (``position``: wait until the state has reached
    it), ``pause``, ``resume``, ``observe`` (``space`` empty: every space; ``node`` empty: every
    node of the space), ``keep`` (the same, with ``settings`` and ``unset``), ``drain``, ``undrain``
    (``node``: a decode node).
    """

    verb: str
    space: str = ""
    node: str = ""
    who: str = ""
    """Who asks, for the record of a policy."""
    settings: RetentionSettings = AS_STARTED
    """How nodes are to keep; what is not named stays."""
    unset: tuple[str, ...] = ()
    """Names of settings that are to be as engines were started again."""
    position: int = 0
    timeout_s: float = 3.0
    """How long the coordinator may wait for ``position``."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question that cannot be answered."""

    error: str
    """What is wrong, with the cure."""
    reason: str
    """A stable word: ``bad_query``, ``unknown_space``, ``unknown_node``, ``refused``,
    ``not_leader``, ``behind``, ``ledger``, ``busy``, ``too_large``, ``internal``."""
    leader: str = ""
    """For ``not_leader``: whom to ask."""


Answer = dict[str, Any]

_QUERIES = msgspec.json.Decoder(Query)


def encode_query(query: Query) -> bytes:
    return msgspec.json.encode(query)


def decode_query(data: bytes) -> Query:
    """
    Raises:
        CodecError: not a question.
    """
    try:
        return _QUERIES.decode(data)
    except msgspec.DecodeError as error:
        raise CodecError(f"not a query: {error}") from error


def encode_answer(answer: Answer | Failure) -> bytes:
    return msgspec.json.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """An answer or a failure, as a mapping; a failure has the key ``error``.

    Raises:
        CodecError: not an answer.
    """
    try:
        return msgspec.json.decode(data, type=Answer)
    except msgspec.DecodeError as error:
        raise CodecError(f"not an answer: {error}") from error
