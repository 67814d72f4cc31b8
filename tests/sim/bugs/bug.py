"""A seeded bug: a small patch of shipped code that some checker must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """One attribute of shipped code and what the bug puts in its place."""

    owner: Any
    name: str
    bad: Any


class Bug(NamedTuple):
    """What is broken, who must notice, and within how many seeds."""

    name: str
    check: str
    """The checker that must find it."""
    patches: Callable[[], tuple[Patch, ...]]
    """Made when it is applied, so that shipped modules are loaded by then."""
    profile: str = "peers"
    knobs: dict[str, str] = {}  # noqa: RUF012 - a NamedTuple's default is never changed.
    seeds: int = 12


@contextmanager
def applied(bug: Bug | None) -> Iterator[None]:
    """Shipped code has the bug meanwhile; None for no bug."""
    done: list[tuple[Any, str, Any]] = []
    for owner, name, bad in bug.patches() if bug is not None else ():
        done.append((owner, name, vars(owner)[name]))
        setattr(owner, name, bad)
    try:
        yield
    finally:
        for owner, name, good in reversed(done):
            setattr(owner, name, good)
