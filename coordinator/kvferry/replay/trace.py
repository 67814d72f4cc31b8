"""A request trace in Mooncake's format: when prompts came, how long they were, what they shared.

One JSON object a line: ``timestamp`` (ms), ``input_length``, ``output_length`` (tokens) and
``hash_ids``, one number for each 512 tokens of the prompt. Equal numbers mean equal text from the
prompt's beginning up to there. The trace knows no sessions; they are recognised as the router
recognises them, by a prompt that begins with the whole of an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvferry.errors import ConfigError

BLOCK_TOKENS = 512
"""Tokens that one number of ``hash_ids`` stands for: the block of this simulation."""
TURN_BLOCKS_MIN = 2
"""A prompt is recognised as the beginning of a later one from so many full blocks on: the first
block of many prompts is the same system prompt."""
LINE_BYTES_MAX = 1024 * 1024
TURNS_MAX = 1_000_000


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the trace."""

    index: int
    at_s: float
    """When it came, seconds from the beginning of the trace."""
    tokens: int
    """Length of the prompt."""
    answer: int
    """Tokens generated."""
    chain: tuple[int, ...]
    """The prompt's blocks that somebody could share: the full ones before its last token."""
    session: str
    number: int
    """1 for a session's first turn."""
    parent: int | None
    """Index of the turn that it continues."""

    @property
    def blocks(self) -> int:
        """Blocks that the prompt takes, the last partly filled one included."""
        return blocks_of(self.tokens)

    @property
    def all_blocks(self) -> int:
        """Blocks of prompt and answer."""
        return blocks_of(self.tokens + self.answer)


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def blocks_of(tokens: int) -> int:
    """Blocks that so many tokens take."""
    return -(-tokens // BLOCK_TOKENS)


T = TypeVar("T")


class Ends(Generic[T]):
    """Which earlier prompt a prompt continues: the longest whose end lies within it.

    Args:
        ends_max: so many ends are remembered; the oldest give way.
    """

    def __init__(self, ends_max: int = TURNS_MAX) -> None:
        self._max = ends_max
        self._ends: dict[int, T] = {}

    def longest(self, marks: Sequence[int]) -> T | None:
        """What was kept for the last of these marks that is an end; None if none is."""
        return next((self._ends[mark] for mark in reversed(marks) if mark in self._ends), None)

    def keep(self, mark: int, turn: T) -> None:
        """A prompt ends at this mark; a later one replaces an earlier one."""
        self._ends.pop(mark, None)
        self._ends[mark] = turn
        if len(self._ends) > self._max:
            del self._ends[next(iter(self._ends))]


Line = tuple[float, int, int, list[int]]
"""When it came in seconds, tokens of prompt and answer, and hash ids."""


def read_trace(path: Path, limit: int | None = None) -> list[Turn]:
    """The turns of a trace file, in the order of their times.

    Args:
        path: the file.
        limit: only so many lines from the beginning.

    Raises:
        ConfigError: the file or a line of it cannot be used; names the line and the cure.
    """
    try:
        with path.open("rb") as file:
            return turns_of(trace_lines(file, f"--trace {path}", limit))
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be read: {error.strerror}") from error


def turns_of(lines: Iterable[Line]) -> list[Turn]:
    """Turns from (time in s, prompt tokens, answer tokens, hash ids), with their sessions."""
    turns: list[Turn] = []
    ends: Ends[Turn] = Ends()
    for at_s, tokens, answer, ids in lines:
        chain = tuple(ids[: (tokens - 1) // BLOCK_TOKENS])
        parent = ends.longest(chain)
        turn = Turn(
            index=len(turns),
            at_s=at_s,
            tokens=tokens,
            answer=answer,
            chain=chain,
            session=parent.session if parent is not None else f"s{len(turns)}",
            number=parent.number + 1 if parent is not None else 1,
            parent=parent.index if parent is not None else None,
        )
        turns.append(turn)
        if len(chain) >= TURN_BLOCKS_MIN:
            ends.keep(chain[-1], turn)
    return turns


def distinct_blocks(turns: Iterable[Turn]) -> int:
    """How many different shareable blocks the prompts have: what an infinite cache ends up with."""
    return len({block for turn in turns for block in turn.chain})


def trace_lines(file: Iterable[bytes], name: str, limit: int | None = None) -> Iterator[Line]:
    """The lines of a trace one by one, at most :data:`TURNS_MAX`.

    Args:
        file: its raw lines.
        name: the option and the file, for errors.
        limit: only so many from the beginning.

    Raises:
        ConfigError: a line cannot be used; names it and the cure.
    """
    decoder = msgspec.json.Decoder(_Line)
    places: dict[int, tuple[int, int]] = {}
    before_ms, number, found = 0.0, 0, 0
    for number, raw in enumerate(file, start=1):
        if found == (TURNS_MAX if limit is None else limit):
            break
        if not raw.strip():
            continue
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _bad(
                name,
                number,
                str(error),
                "a line is a JSON object with timestamp, input_length, output_length, hash_ids",
            ) from error
        _check(name, number, line, before_ms, places)
        before_ms, found = line.timestamp, found + 1
        yield line.timestamp / 1_000.0, line.input_length, line.output_length, line.hash_ids
    if not found:
        raise ConfigError(f"{name} holds no requests: give a Mooncake trace (JSON lines)")


def _check(
    name: str, number: int, line: _Line, before_ms: float, places: dict[int, tuple[int, int]]
) -> None:
    if line.input_length < 1 or line.output_length < 1:
        raise _bad(name, number, "a length below 1", "remove requests without prompt or answer")
    if not before_ms <= line.timestamp < float("inf"):
        raise _bad(
            name,
            number,
            f"timestamp {line.timestamp:g} after {before_ms:g}",
            "sort the lines by timestamp (ms from the beginning of the trace, not negative)",
        )
    wanted = blocks_of(line.input_length)
    if len(line.hash_ids) != wanted:
        raise _bad(
            name,
            number,
            f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens, not {wanted}",
            f"one is needed for each {BLOCK_TOKENS} tokens, the last one for the rest",
        )
    parent = -1
    for place, block in enumerate(line.hash_ids):
        if places.setdefault(block, (parent, place)) != (parent, place):
            raise _bad(
                name,
                number,
                f"hash id {block} follows another block here than before",
                "an id must stand for all text from the prompt's beginning up to its block",
            )
        parent = block


def _bad(name: str, number: int, what: str, cure: str) -> ConfigError:
    return ConfigError(f"{name} line {number}: {what}; {cure}")
