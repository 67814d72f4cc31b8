"""Old events made new: each step lifts a raw mapping by one version.

Upcasters work on the mapping as it was stored, before any type is applied, so that a field
that no type knows any more can still be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from kvferry.errors import CodecError

RawEvent: TypeAlias = dict[str, Any]
Upcaster: TypeAlias = Callable[[RawEvent], RawEvent]


class Upcasters:
    """The steps by (event name, version they read)."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], Upcaster] = {}

    def register(self, name: str, version: int) -> Callable[[Upcaster], Upcaster]:
        """Decorate the function that turns version ``version`` into ``version + 1``.

        Raises:
            ValueError: there is one already.
        """

        def add(step: Upcaster) -> Upcaster:
            if (name, version) in self._steps:
                raise ValueError(f"{name} version {version} has an upcaster already")
            self._steps[name, version] = step
            return step

        return add

    def lift(self, name: str, stored: int, wanted: int, raw: RawEvent) -> RawEvent:
        """``raw`` as version ``wanted`` would have stored it.

        Raises:
            CodecError: a step is missing.
        """
        for version in range(stored, wanted):
            step = self._steps.get((name, version))
            if step is None:
                raise CodecError(
                    f"{name} version {version} cannot be read: no upcaster to version {version + 1}"
                )
            raw = step(raw)
        return raw


UPCASTERS = Upcasters()
"""The registry in use. Every schema version that was ever released has its step here."""
