"""What a client may ask: a name for its session, to keep its KV, that it is over, who decodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry_connectors.router.bodies import Body
from kvferry_connectors.router.errors import bad_request

FIELD = "kvferry"
"""The object in a client's body. Its fields can be given as headers instead."""
SESSION_HEADER = "x-kvferry-session"
RETAIN_HEADER = "x-kvferry-retain"
END_HEADER = "x-kvferry-end"
POOL_HEADER = "x-kvferry-pool"
FALLBACK_HEADER = "x-kvferry-fallback"
NATIVE, TILERT = "native", "tilert"
POOLS = (NATIVE, TILERT)
SESSION_CHARS_MAX = 128
_FIELDS = ("session", "retain_s", "end", "pool", "fallback")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Wishes:
    """Checked and within the router's bounds.

    Attributes:
        session: the client's name for the conversation, or empty.
        retain_ms: how long the decode engine shall keep the turn's blocks; 0 for no wish. The
            engine may keep them for less: its budget and its running requests come first.
        end: this is the session's last turn.
        pool: who decodes: ``native`` (the decode engines) or ``tilert``.
        fallback: native decode is welcome where TileRT cannot answer.
    """

    session: str = ""
    retain_ms: int = 0
    end: bool = False
    pool: str = NATIVE
    fallback: bool = False

    def part(self) -> dict[str, object]:
        """What engines are told of them."""
        said: dict[str, object] = {}
        if self.retain_ms:
            said["retain_ms"] = self.retain_ms
        if self.end:
            said["end"] = True
        return said


def read_wishes(body: Body, headers: Mapping[str, str], retain_max_s: float) -> Wishes:
    """Takes a client's wishes out of its body and headers; a header counts before a field.

    Raises:
        Answered: with 400, naming the field and its bounds.
    """
    given = body.pop(FIELD, None)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise bad_request(f'"{FIELD}" must be an object with {", ".join(_FIELDS)}')
    for name in given:
        if name not in _FIELDS:
            raise bad_request(f'"{FIELD}.{name}" is unknown; known are {", ".join(_FIELDS)}')
    retain_ms = _retain_ms(given, headers, retain_max_s)
    end = _flag(given, headers, "end", END_HEADER)
    if end and retain_ms:
        raise bad_request("a session that ends is not retained: ask for one of the two")
    pool = _pool(given, headers)
    fallback = _flag(given, headers, "fallback", FALLBACK_HEADER)
    if fallback and pool == NATIVE:
        raise bad_request(f'"{FIELD}.fallback" goes with "{FIELD}.pool": "{TILERT}" only')
    return Wishes(_session(given, body, headers), retain_ms, end, pool, fallback)


def _pool(given: Mapping[str, object], headers: Mapping[str, str]) -> str:
    where, pool = f'"{FIELD}.pool"', given.get("pool", NATIVE)
    if POOL_HEADER in headers:
        where, pool = f"header {POOL_HEADER}", headers[POOL_HEADER].lower()
    if not isinstance(pool, str) or pool not in POOLS:
        raise bad_request(f"{where} is {pool!r}: use one of {', '.join(POOLS)}")
    return pool


def _session(given: Mapping[str, object], body: Body, headers: Mapping[str, str]) -> str:
    name = headers.get(SESSION_HEADER) or given.get("session")
    if name is None:
        name = body.get("session_id", "")
        name = name if isinstance(name, str) else ""  # A field of other makers.
    if not isinstance(name, str):
        raise bad_request(f'"{FIELD}.session" must be a string')
    if len(name) > SESSION_CHARS_MAX:
        raise bad_request(f"the session's name is longer than {SESSION_CHARS_MAX} characters")
    return name


def _retain_ms(given: Mapping[str, object], headers: Mapping[str, str], max_s: float) -> int:
    where, value = f'"{FIELD}.retain_s"', given.get("retain_s")
    if RETAIN_HEADER in headers:
        where, value = f"header {RETAIN_HEADER}", _number(headers[RETAIN_HEADER])
    elif value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= max_s:
        bound = (
            f"more than 0 and at most {max_s:g} (the router's --retain-max-s)"
            if max_s > 0
            else "left out: this router retains nothing on request (--retain-max-s is 0)"
        )
        raise bad_request(f"{where} is {value!r}: it must be seconds, {bound}")
    return max(1, int(value * 1000))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _flag(given: Mapping[str, object], headers: Mapping[str, str], name: str, header: str) -> bool:
    if header in headers:
        word = headers[header].lower()
        if word not in _WORDS:
            raise bad_request(f"header {header} is {word!r}: use true or false")
        return _WORDS[word]
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f'"{FIELD}.{name}" is {value!r}: it must be true or false')
    return value
