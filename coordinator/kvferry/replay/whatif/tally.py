"""How many of the recorded decisions the shipped code comes to again."""

from __future__ import annotations

from collections import Counter

import msgspec

ENOUGH = 0.99
"""Share of decisions that must be reproduced before another policy is compared."""
EXAMPLES_MAX = 5


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """One decision to which the code does not come again."""

    node: str
    request: str
    recorded: str
    again: str


class Kind(msgspec.Struct, kw_only=True):
    """The decisions of one kind."""

    decided: int = 0
    same: int = 0
    why: Counter[str] = msgspec.field(default_factory=Counter)
    """Of those that differ, or could not be decided again."""
    examples: list[Differing] = []


class Tally(msgspec.Struct, kw_only=True):
    """All recorded decisions.

    Attributes:
        kinds: by what decided: ``plan``, ``told``, ``hint`` or ``host``.
        not_decided: requests about which no policy decided anything, by what happened.
    """

    kinds: dict[str, Kind] = {}
    not_decided: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def decided(self) -> int:
        """Decisions in all."""
        return sum(kind.decided for kind in self.kinds.values())

    @property
    def same(self) -> int:
        """Of these, those that were reproduced."""
        return sum(kind.same for kind in self.kinds.values())

    @property
    def share(self) -> float:
        """The reproduced share; 1 where nothing was decided."""
        return self.same / self.decided if self.decided else 1.0

    @property
    def enough(self) -> bool:
        """Whether another policy may be compared."""
        return self.share >= ENOUGH

    def reproduced(self, kind: str) -> None:
        """One decision came out the same."""
        one = self._kind(kind)
        one.decided += 1
        one.same += 1

    def differs(self, kind: str, why: str, example: Differing) -> None:
        """One came out otherwise, or its inputs are not in the ledger."""
        one = self._kind(kind)
        one.decided += 1
        one.why[why] += 1
        if len(one.examples) < EXAMPLES_MAX:
            one.examples.append(example)

    def _kind(self, kind: str) -> Kind:
        return self.kinds.setdefault(kind, Kind())
