"""The subjects of the ledger, and which stream holds each.

::

    kvf.<space>.<node>.facts    KVF         a node's decisions
    kvf.<space>.<node>.blocks   KVF_BLOCKS  a node's detail
    kvf.<space>.coord           KVF         the leader's decisions for a space

No hash ever stands in a subject: a server pays about 270 bytes of memory for each.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvferry.core.events import BLOCKS, COORD, FACTS
from kvferry.errors import CodecError, ConfigError
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM

ROOT = "kvf"
TOKEN_CHARS_MAX = 128
FACTS_SUBJECTS = (f"{ROOT}.*.*.{FACTS}", f"{ROOT}.*.{COORD}")
BLOCKS_SUBJECTS = (f"{ROOT}.*.*.{BLOCKS}",)

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


class Address(NamedTuple):
    """What a subject says. ``node`` is empty for the coord lane."""

    space: str
    node: str
    lane: str


def token(name: str, what: str) -> str:
    """``name`` if it fits one NATS token; ``what`` says in errors whose name it is.

    Raises:
        ConfigError: it does not fit.
    """
    if _TOKEN.fullmatch(name) is None:
        raise ConfigError(
            f"{what} {name!r} does not fit the ledger: use letters, digits, '-' and '_' only"
        )
    if len(name) > TOKEN_CHARS_MAX:
        raise ConfigError(
            f"{what} {name[:32]!r}... has {len(name)} characters: use at most {TOKEN_CHARS_MAX}"
        )
    return name


def lane_subject(space: str, node: str, lane: str) -> str:
    """Where a batch of that lane goes; ``node`` is not used for the coord lane.

    Raises:
        ConfigError: a name does not fit one token, or there is no such lane.
    """
    if lane == COORD:
        return f"{ROOT}.{token(space, 'space')}.{COORD}"
    if lane not in (FACTS, BLOCKS):
        raise ConfigError(f"there is no lane {lane!r}: use {FACTS}, {BLOCKS} or {COORD}")
    return f"{ROOT}.{token(space, 'space')}.{token(node, 'node')}.{lane}"


def facts_subject(space: str, node: str) -> str:
    """Where a node writes its decisions."""
    return lane_subject(space, node, FACTS)


def blocks_subject(space: str, node: str) -> str:
    """Where a node writes its detail."""
    return lane_subject(space, node, BLOCKS)


def coord_subject(space: str) -> str:
    """Where the leader writes for a space."""
    return lane_subject(space, "", COORD)


def parse(subject: str) -> Address:
    """The reverse of :func:`lane_subject`.

    Raises:
        CodecError: not a subject of the ledger.
    """
    parts = subject.split(".")
    if parts[0] == ROOT:
        if len(parts) == 4 and parts[3] in (FACTS, BLOCKS):
            return Address(parts[1], parts[2], parts[3])
        if len(parts) == 3 and parts[2] == COORD:
            return Address(parts[1], "", COORD)
    raise CodecError(f"{subject!r} is not a subject of the ledger")


def stream_of(subject: str) -> str:
    """The stream that stores ``subject``.

    Raises:
        CodecError: not a subject of the ledger.
    """
    return BLOCKS_STREAM if parse(subject).lane == BLOCKS else FACTS_STREAM


def matches(pattern: str, subject: str) -> bool:
    """Whether a NATS pattern (``*`` for one token, a final ``>`` for the rest) takes a subject."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(given) > position
        if position >= len(given) or part not in ("*", given[position]):
            return False
    return len(wanted) == len(given)
