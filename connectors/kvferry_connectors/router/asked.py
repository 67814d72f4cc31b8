"""What a client asked for: its body, and whose conversation it belongs to."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from kvferry_connectors.router.bodies import Body, Kind, one_prompt, read_body
from kvferry_connectors.router.errors import bad_request
from kvferry_connectors.router.prompts import PromptChain, chain_of, scope_of
from kvferry_connectors.router.wishes import Wishes, read_wishes

REUSE_HEADER = "x-kvferry-reuse"

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


@dataclass(frozen=True)
class Asked:
    """One turn's request.

    Attributes:
        id: the router's name for the turn.
        reuse: false if the client wants P to take nothing from history.
        single: whether it has one prompt; hints cannot serve several.
        session: the name that the client gave its session, made safe, or empty.
        named: the scope of that session, or ``None``.
        chain: the prompt, to be recognised by; ``None`` if it cannot be.
        wishes: what the client asks of its session's KV.
    """

    id: str
    kind: Kind
    body: Body
    headers: Mapping[str, str]
    stream: bool
    reuse: bool
    single: bool
    session: str
    named: bytes | None
    chain: PromptChain | None
    wishes: Wishes


def read_request(
    kind: Kind, content: bytes, headers: Mapping[str, str], retain_max_s: float
) -> Asked:
    """Reads a client's request, which may ask for ``retain_max_s`` of retention at most.

    Raises:
        Answered: with 400, if the body is no JSON object or an option is wrong.
    """
    try:
        body = read_body(content)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body cannot be read as a JSON object: {error}") from error
    reuse = headers.get(REUSE_HEADER, "on")
    if reuse not in ("on", "off"):
        raise bad_request(f"header {REUSE_HEADER} is {reuse!r}: use on or off")
    wishes = read_wishes(body, headers, retain_max_s)
    explicit = wishes.session
    # Two conversations may meet only under the same credentials and the same salt.
    tenant = (headers.get("authorization", ""), _string(body, "cache_salt"))
    scope = scope_of(*tenant, explicit)
    single = one_prompt(kind, body)
    return Asked(
        id=f"kvf-{secrets.token_hex(8)}",
        kind=kind,
        body=body,
        headers=headers,
        stream=body.get("stream") is True,
        reuse=reuse == "on",
        single=single,
        session=_session_name(explicit, tenant),
        named=scope if explicit else None,
        chain=chain_of(kind, body, scope) if single else None,
        wishes=wishes,
    )


def _session_name(explicit: str, tenant: tuple[str, str]) -> str:
    """Two tenants' sessions of one name stay two for the engines as well."""
    if not explicit:
        return ""
    mark = f"~{scope_of(*tenant).hex()[:8]}" if any(tenant) else ""
    return _UNPRINTABLE.sub("_", explicit) + mark


def _string(body: Body, name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""
