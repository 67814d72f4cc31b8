"""What an operator may set for a coordinator."""

from __future__ import annotations

import re
import secrets

import msgspec

from kvferry.core.state import COST_LEARNED, COST_OFF
from kvferry.errors import ConfigError

_REPLICA = re.compile(r"[A-Za-z0-9_-]{1,64}")


def new_replica_name() -> str:
    """``c-`` and 8 hex digits: a name of its own for every process that is not given one."""
    return f"c-{secrets.token_hex(4)}"


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one coordinator process. Checked when built.

    Raises:
        ConfigError: an option is out of range; the text names it and the cure.
    """

    replica: str = msgspec.field(default_factory=new_replica_name)
    """This process among coordinators; one NATS token."""
    silent_after_s: float = 5.0
    """A node whose heartbeat is not heard for so long is declared gone."""
    announce_every_s: float = 1.0
    """Nodes take a coordinator for healthy while they hear it; their bound is 3 s."""
    beat_every_s: float = 0.2
    """How often coordinators hear of each other."""
    takeover_after_s: float = 1.0
    """Another leader that is not heard for so long may be replaced, and one that could not hear
    others for so long stands down."""
    cost: str = COST_LEARNED
    """``learned``: plans weigh moving against computing; ``off``: whatever is held is moved. The
    leader's holds for every replica, and stands in the ledger."""
    tick_s: float = 0.2
    """How often silence, leadership and lag are looked at."""
    checkpoint_every_s: float = 300.0
    checkpoints_max: int = 8
    """Snapshots that are kept, at least two."""
    stop_timeout_s: float = 5.0
    """Bound of a clean stop, the last checkpoint included."""
    decide_timeout_s: float = 5.0
    """Bound of one decision: append, fold to it, conflicts included."""

    def __post_init__(self) -> None:
        if not _REPLICA.fullmatch(self.replica):
            raise ConfigError(
                f"replica={self.replica!r} does not fit one NATS token; use 1 to 64 letters, "
                "digits, '-' or '_'"
            )
        if self.cost not in (COST_LEARNED, COST_OFF):
            raise ConfigError(f"cost={self.cost!r}: use {COST_LEARNED!r} or {COST_OFF!r}")
        for name, least, most in (
            ("silent_after_s", 1.0, 3600.0),
            ("announce_every_s", 0.05, 2.0),
            ("beat_every_s", 0.02, 2.0),
            ("takeover_after_s", 0.2, 600.0),
            ("tick_s", 0.01, 5.0),
            ("checkpoint_every_s", 1.0, 86_400.0),
            ("stop_timeout_s", 0.1, 120.0),
            ("decide_timeout_s", 0.1, 60.0),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name}={value} is out of range; use {least:g} to {most:g}")
        if not 2 <= self.checkpoints_max <= 1000:
            raise ConfigError(
                f"checkpoints_max={self.checkpoints_max} is out of range; use 2 to 1000"
            )
        if self.takeover_after_s < 3 * self.beat_every_s:
            raise ConfigError(
                f"takeover_after_s={self.takeover_after_s} is below three times beat_every_s="
                f"{self.beat_every_s}: one late message would change the leader; raise it"
            )
