"""Runs of sampled hashes that share what they begin with, and who holds how much of each.

A chain hash commits to every block before it, so chains that share a hash share everything before
it: a space's chains are a forest. A *branch* lists the samples of a stretch of a chain, joined, 8
bytes each; where chains part, a further branch begins. That is nearly all that is kept for a
sample, however many nodes hold it and however many offers list it. Two chains are compared by
bisection, for the same reason.

Lengths and places are in bytes of joined samples throughout this module, multiples of
:data:`kvferry.ids.SHORT_BYTES`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from kvferry.ids import SHORT_BYTES


class Holder(msgspec.Struct, eq=False, gc=False):
    """A node's tier, for as long as it offers something."""

    node: str
    tier: str
    offers: int = 0
    """How many."""


class Branch(msgspec.Struct, eq=False, gc=False):
    """A stretch of a chain, and how far into it each holder reaches.

    Whoever holds a part of a further branch holds this one up to where that begins, and is listed
    here with that reach.

    Nothing here refers back to what refers to it, so there is no garbage for Python's collector to
    look for among millions of these.
    """

    hashes: bytes
    """Its samples, joined. It ends where its furthest holder does."""
    parent: Branch | None
    """The branch that it parts from; None if it begins a run."""
    at: int
    """Where in the parent it begins; without a parent, where in its chain."""
    held: dict[Holder, int | list[int]]
    """A reach, or ascending reaches if there are several."""

    def hold(self, holder: Holder, reach: int) -> None:
        """Count one more reach."""
        known = self.held.get(holder)
        if known is None:
            self.held[holder] = reach
        elif isinstance(known, int):
            self.held[holder] = [known, reach] if known <= reach else [reach, known]
        else:
            insort(known, reach)

    def release(self, holder: Holder, reach: int) -> None:
        """Count one less of a reach that was counted."""
        known = self.held[holder]
        if isinstance(known, int):
            del self.held[holder]
        elif len(known) == 2:
            self.held[holder] = known[1] if known[0] == reach else known[0]
        else:
            # The last of equal ones: little lies behind it where most runs share one reach.
            del known[bisect_right(known, reach) - 1]

    def reaches(self) -> Iterator[tuple[Holder, int]]:
        """Every holder with the furthest that it reaches."""
        for holder, known in self.held.items():
            yield holder, known if isinstance(known, int) else known[-1]


End: TypeAlias = tuple[Branch, int, int]
"""Where a run ends: a branch, the reach into it, and where in its chain the run begins."""
Path: TypeAlias = list[tuple[Branch, int, int]]
"""Branches along a chain, first to last, each with where it begins in the chain and where the
chain leaves it."""


class Forest:
    """The runs of one space.

    Samples that cannot be a chain's (one hash at two places) are listed as far as they make sense.
    """

    __slots__ = ("_branches", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        """Joined samples kept."""
        self._branches: dict[int, dict[bytes, Branch]] = {}
        """By where their run begins in its chain, and by their first sample."""

    def starts(self) -> Iterable[int]:
        """Where runs begin in their chains."""
        return self._branches.keys()

    def stretches(self) -> list[bytes]:
        """The samples of every branch."""
        return [one.hashes for branches in self._branches.values() for one in branches.values()]

    def add(self, run: bytes, start: int, holder: Holder) -> End | None:
        """List a run; gives its end, or None if nothing of it can be listed.

        Args:
            run: its samples, at least one.
            start: its place in its chain.
            holder: who holds it.
        """
        branches = self._branches.get(start)
        if branches is None:
            branches = self._branches[start] = {}
        branch = branches.get(run[:SHORT_BYTES])
        if branch is None:
            branches[run[:SHORT_BYTES]] = branch = Branch(run, None, start, {holder: len(run)})
            self.bytes += len(run)
            return branch, len(run), start
        if branch.parent is not None:
            return None
        length = len(run)
        done = 0
        while True:
            reach = shared(branch.hashes, run, done)
            done += reach
            if done == length:
                break
            first = run[done : done + SHORT_BYTES]
            further = branches.get(first)
            if further is not None:
                if further.parent is not branch or further.at != reach:
                    break
                branch.hold(holder, reach)
                branch = further
            elif reach == len(branch.hashes):
                self.bytes += length - done
                branch.hashes += run[done:]
                reach += length - done
                break
            else:
                self.bytes += length - done
                branch.hold(holder, reach)
                branches[first] = branch = Branch(run[done:], branch, reach, {})
                reach = length - done
                break
        branch.hold(holder, reach)
        return branch, reach, start

    def remove(self, branch: Branch, reach: int, start: int, holder: Holder) -> None:
        """Take back one run that :meth:`add` listed with this end."""
        here: Branch | None = branch
        while here is not None:
            here.release(holder, reach)
            if reach == len(here.hashes):
                self._trim(here, start)
            reach, here = here.at, here.parent

    def path(self, chain: bytes, start: int) -> Path:
        """The branches along a chain from the run on that begins at ``start``; none without it."""
        branches = self._branches.get(start)
        branch = branches.get(chain[start : start + SHORT_BYTES]) if branches else None
        if branches is None or branch is None or branch.parent is not None:
            return []
        found = []
        while True:
            end = start + shared(branch.hashes, chain, start)
            found.append((branch, start, end))
            further = branches.get(chain[end : end + SHORT_BYTES])
            if further is None or further.parent is not branch or start + further.at != end:
                return found
            branch, start = further, end

    def _trim(self, branch: Branch, start: int) -> None:
        """End a branch where its furthest holder does."""
        end = 0
        for _, reach in branch.reaches():
            if reach == len(branch.hashes):
                return  # Often the first: of what prompts begin with, all hold everything.
            end = max(end, reach)
        self.bytes -= len(branch.hashes) - end
        if end:
            branch.hashes = branch.hashes[:end]
            return
        branches = self._branches[start]
        del branches[branch.hashes[:SHORT_BYTES]]
        if not branches:
            del self._branches[start]


def shared(hashes: bytes, chain: bytes, start: int) -> int:
    """How much of ``hashes`` is the chain's from ``start`` on, where the first sample is."""
    if chain.startswith(hashes, start):
        return len(hashes)
    most = min(len(hashes), len(chain) - start)
    if hashes[most - SHORT_BYTES : most] == chain[start + most - SHORT_BYTES : start + most]:
        return most
    low, high = SHORT_BYTES, most
    while high - low > SHORT_BYTES:
        middle = (low + high) >> 4 << 3
        if chain.startswith(hashes[middle - SHORT_BYTES : middle], start + middle - SHORT_BYTES):
            low = middle
        else:
            high = middle
    return low
