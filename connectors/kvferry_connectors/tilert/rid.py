"""The name under which a decode node waits for a request's KV.

Sender and router have to arrive at the same name although the engine knows a request by a longer
id than the router does. A mark may carry the name (``rid``), and then nothing is derived. Without
it, an unmodified TileRT router derives the name from the id of vLLM's response by a rule that cuts
off whatever looks like a suffix; :func:`router_rid` is that rule. What the rule is given matters:
applied to the engine's own id it cuts other parts than the router cuts, so that such a request
never meets its KV. Hence the engine's id is first turned back into the response's
(:func:`response_id`), which needs no guess.
"""

from __future__ import annotations

_PREFIXES = ("chatcmpl-", "cmpl-")
_SUFFIX_DIGITS = 8
_INDEX_DIGITS_MAX = 3
_HEX = frozenset("0123456789abcdef")


def rid_of(request_id: str, *, randomized: bool = True) -> str:
    """The name that an unmodified router uses for the request that the engine calls this.

    ``randomized`` is False where vLLM was told to leave its random suffix off.
    """
    return router_rid(response_id(request_id, randomized=randomized))


def response_id(request_id: str, *, randomized: bool = True) -> str:
    """The ``id`` of the response to the request that the engine calls ``request_id``.

    vLLM appends eight hexadecimal digits to every id, and before them the prompt's number within
    its request where it completes text.
    """
    found = request_id
    if randomized:
        head, dash, tail = found.rpartition("-")
        if dash and len(tail) == _SUFFIX_DIGITS and _HEX.issuperset(tail):
            found = head
    if found.startswith("cmpl-"):
        head, dash, tail = found.rpartition("-")
        if dash and head != "cmpl" and tail.isdecimal():
            found = head
    return found


def router_rid(response: str) -> str:
    """The name that TileRT's router derives from a response's ``id``.

    It drops the kind's prefix, then one last part of up to eight hexadecimal digits, then one of
    up to three decimal digits.
    """
    name = response
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    head, dash, tail = name.rpartition("-")
    if dash and len(tail) <= _SUFFIX_DIGITS and _HEX.issuperset(tail):
        name = head
    head, dash, tail = name.rpartition("-")
    if dash and tail.isdigit() and len(tail) <= _INDEX_DIGITS_MAX:
        name = head
    return name
