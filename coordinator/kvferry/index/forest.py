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
from collections.abc import Iterator
from typing import TypeAlias

from kvferry.ids import SHORT_BYTES


class Holder:
    """A node's tier, for as long as it offers something.

    Attributes:
        offers: how many.
    """

    __slots__ = ("node", "offers", "tier")

    def __init__(self, node: str, tier: str) -> None:
        self.node = node
        self.tier = tier
        self.offers = 0


class Branch:
    """A stretch of a chain, and how far into it each holder reaches.

    Whoever holds a part of a further branch holds this one up to where that begins, and is listed
    here with that reach.

    Attributes:
        hashes: its samples, joined. It ends where its furthest holder does.
        parent: the branch that it parts from; None if it begins a run.
        at: where in the parent it begins; without a parent, where in its chain.
        children: what parts from it, by first sample; None for nothing.
        held: a reach, or ascending reaches if there are several, by holder.
    """

    __slots__ = ("at", "children", "hashes", "held", "parent")

    def __init__(self, hashes: bytes, parent: Branch | None, at: int) -> None:
        self.hashes = hashes
        self.parent = parent
        self.at = at
        self.children: dict[bytes, Branch] | None = None
        self.held: dict[Holder, int | list[int]] = {}

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


End: TypeAlias = tuple[Branch, int]
"""Where a run ends: a branch and the reach into it."""
Path: TypeAlias = list[tuple[Branch, int, int]]
"""Branches along a chain, first to last, each with where it begins in the chain and where the
chain leaves it."""


class Forest:
    """The runs of one space.

    Samples that cannot be a chain's (one hash at two places) are listed as far as they make sense.
    """

    __slots__ = ("_roots", "bytes", "starts")

    def __init__(self) -> None:
        self.bytes = 0
        """Joined samples kept."""
        self.starts: dict[int, int] = {}
        """Where runs begin in their chains, and how many roots begin there."""
        self._roots: dict[bytes, Branch] = {}

    def add(self, run: bytes, start: int, holder: Holder) -> End | None:
        """List a run; gives its end, or None if nothing of it can be listed.

        Args:
            run: its samples, at least one.
            start: its place in its chain.
            holder: who holds it.
        """
        branch = self._roots.get(run[:SHORT_BYTES])
        if branch is None:
            branch = self._root(run, start)
            branch.held[holder] = len(run)
            return branch, len(run)
        if branch.at != start:
            return None
        length = len(run)
        done = 0
        while True:
            reach = shared(branch.hashes, run, done)
            done += reach
            if done == length:
                break
            children = branch.children
            child = children.get(run[done : done + SHORT_BYTES]) if children is not None else None
            if child is not None:
                if child.at != reach:
                    break
                branch.hold(holder, reach)
                branch = child
            elif reach == len(branch.hashes):
                self.bytes += length - done
                branch.hashes += run[done:]
                reach += length - done
                break
            else:
                self.bytes += length - done
                branch.hold(holder, reach)
                branch = _part(branch, reach, run[done:])
                reach = length - done
                break
        branch.hold(holder, reach)
        return branch, reach

    def remove(self, branch: Branch, reach: int, holder: Holder) -> None:
        """Take back one run that :meth:`add` listed with this end."""
        here: Branch | None = branch
        while here is not None:
            here.release(holder, reach)
            if reach == len(here.hashes):
                self._trim(here)
            reach, here = here.at, here.parent

    def path(self, chain: bytes, start: int) -> Path:
        """The branches along a chain from the run on that begins at ``start``; none without it."""
        branch = self._roots.get(chain[start : start + SHORT_BYTES])
        if branch is None or branch.at != start:
            return []
        found = []
        while True:
            end = start + shared(branch.hashes, chain, start)
            found.append((branch, start, end))
            children = branch.children
            child = children.get(chain[end : end + SHORT_BYTES]) if children is not None else None
            if child is None or start + child.at != end:
                return found
            branch, start = child, end

    def stretches(self) -> list[bytes]:
        """The samples of every branch."""
        found, left = [], list(self._roots.values())
        while left:
            branch = left.pop()
            found.append(branch.hashes)
            if branch.children is not None:
                left += branch.children.values()
        return found

    def _root(self, run: bytes, start: int) -> Branch:
        branch = self._roots[run[:SHORT_BYTES]] = Branch(run, None, start)
        self.bytes += len(run)
        self.starts[start] = self.starts.get(start, 0) + 1
        return branch

    def _trim(self, branch: Branch) -> None:
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
        first = branch.hashes[:SHORT_BYTES]
        parent = branch.parent
        if parent is None:
            del self._roots[first]
            self.starts[branch.at] -= 1
            if not self.starts[branch.at]:
                del self.starts[branch.at]
        elif parent.children is not None:
            del parent.children[first]
            if not parent.children:
                parent.children = None


def _part(parent: Branch, at: int, hashes: bytes) -> Branch:
    child = Branch(hashes, parent, at)
    if parent.children is None:
        parent.children = {}
    parent.children[hashes[:SHORT_BYTES]] = child
    return child


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
