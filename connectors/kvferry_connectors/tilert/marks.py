"""What claims a request: a mark in its ``kv_transfer_params``.

Ours is one key::

    {"tilert": {"host": "10.0.0.7", "port": 5556, "rid": "..."}}

TileRT's own is understood as well, so that this connector can take the place of TileRT's without a
change to a client or a router::

    {"tilert_host": "10.0.0.7", "tilert_ctrl_port": 5556}

A request without a mark is none of our business. A mark that cannot be read claims its request
all the same: the client asked for TileRT, and hears why it does not get it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from kvferry_connectors.tilert.errors import SendRefused

KEY = "tilert"
"""Our key, in a request's ``kv_transfer_params`` and in its reply's."""
THEIR_HOST = "tilert_host"
THEIR_PORT = "tilert_ctrl_port"
CONTROL_PORT = 5556
"""Where TileRT's decode server listens unless told otherwise."""
NAME_BYTES_MAX = 512


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a request's KV shall go."""

    host: str
    """Name or address of the decode node."""
    port: int = CONTROL_PORT
    """Its control port."""
    rid: str = ""
    """The name under which the node is asked to decode; empty where the router derives it from
    the response's id as TileRT's does (:mod:`kvferry_connectors.tilert.rid`)."""
    sampling: dict[str, Any] | None = None
    """Passed on to the node as it is."""
    slot: str = ""
    """The node as the coordinator calls it, of whose lease ``fence`` is; empty without a lease."""
    fence: int = 0
    turn: str = ""
    """The request as its router calls it, for the ledger."""
    within_s: float = 0.0
    """For so long after the engine got the request its KV may be written to the node: the node may
    be another request's after that (:mod:`kvferry.node.slots`). 0: for as long as a send may take.
    """


def claims(params: Mapping[str, Any] | None) -> bool:
    """Whether these ``kv_transfer_params`` carry a mark. Called for every request."""
    return bool(params) and bool(params.get(KEY) or params.get(THEIR_HOST))  # type: ignore[union-attr]


def read(params: Mapping[str, Any]) -> Mark:
    """The mark in ``params``; ours where there are both.

    Raises:
        SendRefused: ``bad_mark``, naming the field.
    """
    ours = params.get(KEY)
    if ours:
        given = ours
    else:
        given = {
            "host": params[THEIR_HOST],
            "port": params.get(THEIR_PORT, CONTROL_PORT),
            "sampling": params.get("sampling"),
        }
    try:
        # Numbers in quotes are taken: TileRT's own connector takes them.
        mark = msgspec.convert(given, Mark, strict=False)
    except msgspec.ValidationError as error:
        raise SendRefused("bad_mark", f"kv_transfer_params: {error}") from error
    if not mark.host or not 0 < mark.port < 65536:
        raise SendRefused("bad_mark", f"{mark.host!r}:{mark.port} is no place to connect to")
    if not 0.0 <= mark.within_s < math.inf:
        raise SendRefused("bad_mark", f"within_s={mark.within_s} is no length of time")
    for name in ("rid", "slot", "turn"):
        if len(getattr(mark, name).encode()) > NAME_BYTES_MAX:
            raise SendRefused("bad_mark", f"the {name} is longer than {NAME_BYTES_MAX} bytes")
    return mark
