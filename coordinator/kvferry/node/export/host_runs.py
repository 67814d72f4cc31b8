"""Chains of a host tier, and which of them give way first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol


class HostRun:
    """A chain of which the first ``len(hashes)`` blocks are kept."""

    __slots__ = ("hashes", "id", "retain_until_s", "session", "used_s")

    def __init__(self, run_id: str, session: str, now_s: float) -> None:
        self.id = run_id
        self.session = session
        self.hashes: list[bytes] = []
        self.used_s = now_s
        self.retain_until_s = 0.0
        """A client asked for it to be kept until then; 0 if none did."""


class Order(Protocol):
    """Which runs give way first."""

    def __call__(self, runs: Collection[HostRun], now_s: float) -> Iterable[HostRun]:
        """``runs``, which come in the order of their last use, the least valuable first; what is
        left out never gives way."""
        ...


def least_recently_used(runs: Collection[HostRun], now_s: float) -> Iterable[HostRun]:
    """The order of their last use."""
    return runs


def retained_last(runs: Collection[HostRun], now_s: float) -> Iterable[HostRun]:
    """The order of their last use, but those that a client asked for after all others."""
    return sorted(runs, key=lambda run: run.retain_until_s > now_s)


class Taken(NamedTuple):
    """Slots to copy into, and what gave way for them."""

    slots: list[int]
    lost: list[bytes]
    """Chain hashes that are no longer held."""
    freed: list[int]
    """The slots that these were in."""
    runs: set[str]
    """The runs that lost a block of theirs, or all."""
