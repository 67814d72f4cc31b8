"""One difference between two states, and what two values of a field look like in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
SPACE, NODE, OFFER, LEASE, TRANSFER, SLOT, TOTALS, POLICY, LEARNED = (
    "space",
    "node",
    "offer",
    "lease",
    "transfer",
    "slot",
    "totals",
    "policy",
    "learned",
)
KINDS = (SPACE, POLICY, NODE, OFFER, LEASE, TRANSFER, SLOT, TOTALS, LEARNED)
"""In the order in which they are told."""

Fields = Mapping[str, Any]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing of a space that is not the same in both states."""

    space: str
    kind: str
    """One of :data:`KINDS`."""
    id: str
    """Name of the node, id of the offer, lease or transfer; else the kind."""
    change: str
    """``added`` (only in B), ``removed`` (only in A) or ``changed``."""
    fields: dict[str, tuple[Any, Any]] = {}
    """For ``changed``: what differs, as (in A, in B)."""
    text: str
    """The difference in plain words."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two states."""

    source: str
    """The ledger or file that it was folded from, as it was asked for."""
    position: int
    """Last message folded."""
    digest: str


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Two states side by side."""

    same: bool
    a: Side
    b: Side
    counts: dict[str, int]
    """Differences by kind."""
    changes: tuple[Change, ...]


def differing(a: Fields, b: Fields) -> dict[str, tuple[Any, Any]]:
    """The fields that are not the same in both, by name; nested ones as ``outer.inner``.

    A number that only one of the two has counts as 0 in the other.
    """
    one, other = _flat(a), _flat(b)
    found: dict[str, tuple[Any, Any]] = {}
    for name in (*one, *(name for name in other if name not in one)):
        left, right = one.get(name), other.get(name)
        left = 0 if left is None and isinstance(right, int | float) else left
        right = 0 if right is None and isinstance(left, int | float) else right
        if left != right:
            found[name] = (left, right)
    return found


def in_words(fields: Mapping[str, tuple[Any, Any]]) -> str:
    """``tier from cache to hbm, blocks from 12 to 8 (-4)``."""
    return ", ".join(
        f"{_name(name)} from {shown(a)} to {shown(b)}{_by(a, b)}" for name, (a, b) in fields.items()
    )


def shown(value: object) -> str:
    """A value as it stands in a sentence."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " and ".join(str(one) for one in value) or "nothing"
    return str(value) if value else "nothing"


def _name(field: str) -> str:
    # What stands within a field is a name of its own: a miss, a node, a backend.
    outer, _, inner = field.partition(".")
    return f"{outer.replace('_', ' ')} {inner}".rstrip()


def _by(a: object, b: object) -> str:
    if isinstance(a, int) and isinstance(b, int) and not isinstance(a, bool):
        return f" ({b - a:+,})"
    return ""


def _flat(fields: Fields) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update((f"{name}.{inner}", one) for inner, one in _flat(value).items())
        else:
            flat[name] = value
    return flat
