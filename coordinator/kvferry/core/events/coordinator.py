"""What the leading coordinator decided."""

from __future__ import annotations

from kvferry.core.events.base import Event


class LeaderElected(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A coordinator took over; lower terms are void from here on."""

    term: int
    replica: str
    cost: str = ""
    """How plans of this space weigh moving against computing from here on: ``learned``, or
    ``off`` where whatever is held is moved; empty where an older leader did not say."""


class NodeLeft(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The leader declares a silent node gone: its offers and open transfers end."""

    term: int
    node: str
    incarnation: str
    epoch: int
    why: str = "silent"


class PolicySet(Event, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's policy. ``node`` empty means the whole space."""

    term: int
    version: int
    mode: str
    """``on``, ``paused`` or ``observe``."""
    node: str = ""
    who: str = ""


class Checkpoint(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of the state at ``position`` is stored under ``object``."""

    term: int
    position: int
    digest: str
    fingerprint: str
    object: str
