"""Cuts a read into system calls: few, large, and short enough to be aborted between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvferry.ports.backend import Span
from kvferry_backends.peer_host.system import IOV_MAX

PIECES_MAX = IOV_MAX - 1
"""A call also carries the nonce."""


class Call(NamedTuple):
    """``lengths[i]`` bytes from ``remote[i]`` in the peer to ``local[i]`` here."""

    local: list[int]
    remote: list[int]
    lengths: list[int]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.lengths)


class _Batch(NamedTuple):
    """Pieces of one span that go into one call, as blocks."""

    sources: list[int]
    targets: list[int]
    lengths: list[int]


def calls(
    target: Sequence[Span],
    source: Sequence[Span],
    targets: Sequence[int],
    sources: Sequence[int],
    call_bytes: int,
) -> Iterator[Call]:
    """The calls that bring ``sources[i]`` of the ``source`` spans to ``targets[i]`` of ours.

    Blocks that are neighbours on both sides become one piece. A call moves at most ``call_bytes``,
    or one block's piece where that is larger.
    """
    runs = _joint_runs(sources, targets)
    singles = [(s, t, 1) for s, t in zip(sources, targets, strict=True)]
    made: dict[tuple[bool, int], list[_Batch]] = {}
    call, size = Call([], [], []), 0
    for ours, theirs in zip(target, source, strict=True):
        dense = ours.stride == ours.length == theirs.stride
        kind = (dense, ours.length)
        if kind not in made:
            made[kind] = _batches(runs if dense else singles, ours.length, call_bytes)
        for batch in made[kind]:
            added = sum(batch.lengths)
            full = len(call.lengths) + len(batch.lengths) > PIECES_MAX or size + added > call_bytes
            if full and size:
                yield call
                call, size = Call([], [], []), 0
            call.local.extend([ours.address + t * ours.stride for t in batch.targets])
            call.remote.extend([theirs.address + s * theirs.stride for s in batch.sources])
            call.lengths.extend(batch.lengths)
            size += added
    if size:
        yield call


def _joint_runs(sources: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int, int]]:
    """(source, target, count) of blocks that follow each other on both sides."""
    found: list[tuple[int, int, int]] = []
    first_s = first_t = 0
    count = 0
    for s, t in zip(sources, targets, strict=True):
        if count and s == first_s + count and t == first_t + count:
            count += 1
            continue
        if count:
            found.append((first_s, first_t, count))
        first_s, first_t, count = s, t, 1
    found.append((first_s, first_t, count))
    return found


def _batches(runs: Sequence[tuple[int, int, int]], length: int, call_bytes: int) -> list[_Batch]:
    """``runs`` of blocks of ``length`` bytes, cut to what fits into one call each."""
    most = max(1, call_bytes // length)
    found: list[_Batch] = []
    batch, room = _Batch([], [], []), most
    for source, target, count in runs:
        while count:
            taken = min(count, room)
            batch.sources.append(source)
            batch.targets.append(target)
            batch.lengths.append(taken * length)
            source, target = source + taken, target + taken
            count, room = count - taken, room - taken
            if not room or len(batch.lengths) == PIECES_MAX:
                found.append(batch)
                batch, room = _Batch([], [], []), most
    if batch.lengths:
        found.append(batch)
    return found
