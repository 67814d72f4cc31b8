"""How turns are grouped in the report: by their place in a session and by prompt length."""

from __future__ import annotations

from kvferry.replay.advise.report import ALL_LENGTHS, Share, Ttft
from kvferry.replay.advise.spread import Values

_TURNS: tuple[tuple[int, str], ...] = (
    *((number, str(number)) for number in range(1, 9)),
    (16, "9-16"),
    (32, "17-32"),
)
_LAST_TURNS = "33+"
_LENGTHS: tuple[tuple[int, str], ...] = (
    (1_024, "up to 1k"),
    (4_096, "1k-4k"),
    (16_384, "4k-16k"),
    (65_536, "16k-64k"),
)
_LONGEST = "above 64k"


def turn_group(number: int) -> str:
    """The name of a turn's group; 1 is a session's first turn."""
    return next((name for most, name in _TURNS if number <= most), _LAST_TURNS)


def length_group(tokens: int) -> str:
    """The name of a prompt length's group."""
    return next((name for most, name in _LENGTHS if tokens <= most), _LONGEST)


class Shares:
    """Adds up turns by their place in sessions."""

    def __init__(self, *, reused: bool) -> None:
        self._reused = reused
        self._sums: dict[str, list[int]] = {}

    def add(self, number: int, prompt: int, repeated: int, reused: int = 0) -> None:
        """One turn, with its tokens."""
        sums = self._sums.setdefault(turn_group(number), [0, 0, 0, 0])
        for place, amount in enumerate((1, prompt, repeated, reused)):
            sums[place] += amount

    def rows(self) -> tuple[Share, ...]:
        """By turn number, ascending."""
        names = [*(name for _, name in _TURNS), _LAST_TURNS]
        return tuple(
            Share(
                turn=name,
                requests=self._sums[name][0],
                prompt_tokens=self._sums[name][1],
                repeated_tokens=self._sums[name][2],
                reused_tokens=self._sums[name][3] if self._reused else None,
            )
            for name in names
            if name in self._sums
        )


class Times:
    """TTFT by prompt length and by how the prompt's KV was come by."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self._kinds = kinds
        self._by: dict[tuple[str, str], Values] = {}

    def add(self, tokens: int, how: str, seconds: float) -> None:
        """One turn."""
        for name in (length_group(tokens), ALL_LENGTHS):
            self._by.setdefault((name, how), Values()).add(seconds)

    def rows(self) -> tuple[Ttft, ...]:
        """Shortest prompts first, and all of them last where their lengths differ."""
        names = [*(name for _, name in _LENGTHS), _LONGEST]
        if len({name for name, _ in self._by}) > 2:
            names.append(ALL_LENGTHS)
        return tuple(
            Ttft(prompt=name, how=how, seconds=self._by[name, how].spread())
            for name in names
            for how in self._kinds
            if (name, how) in self._by
        )
