"""What the leading coordinator decided."""

from __future__ import annotations

from kvferry.core.events.base import Event
from kvferry.core.retention_settings import RetentionSettings


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
    """An operator's policy: a mode, or how nodes keep. ``node`` empty means the whole space, nodes
    that had their own included."""

    term: int
    version: int
    mode: str
    """``on``, ``paused`` or ``observe``; with ``retention`` or ``unset`` the one that stays."""
    node: str = ""
    who: str = ""
    retention: RetentionSettings | None = None
    """What is set of how nodes keep; the rest stays."""
    unset: tuple[str, ...] = ()
    """Names of settings that are as the space says again, or as each engine was started."""

    @property
    def keeps(self) -> bool:
        """It is about how nodes keep, and leaves their modes alone."""
        return self.retention is not None or bool(self.unset)


class Checkpoint(Event, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of the state at ``position`` is stored under ``object``."""

    term: int
    position: int
    digest: str
    fingerprint: str
    object: str
