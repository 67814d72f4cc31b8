"""One load through all contenders, in turn, each time in a fresh process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvferry.bench.children import answer_of
from kvferry.bench.index.child import MEMORY, SPEED, Memory, Speed
from kvferry.bench.index.contenders import reports
from kvferry.bench.index.files import write_events, write_questions
from kvferry.bench.index.load import (
    Ended,
    Fact,
    Plan,
    facts_of,
    hashes_of,
    questions_of,
    requests_of,
)
from kvferry.bench.index.reports import LedgerReports, Report, RouterReports
from kvferry.errors import KVFerryError
from kvferry.ids import SHORT_BYTES

CHILD = "kvferry.bench.index.child"
QUESTIONS_FILE = "questions"
WAIT_S = 900.0
"""For one process: a whole trace with every block hashed, on a busy machine."""

Say = Callable[[str], None]


class Load(msgspec.Struct):
    """What a load adds up to."""

    requests: int = 0
    stored_blocks: int = 0
    """Blocks that nodes came to hold."""
    removed_blocks: int = 0
    longest_chain_blocks: int = 0
    questions: int = 0
    question_blocks: float = 0.0
    """Mean length of a chain that is looked up."""

    @property
    def held_blocks(self) -> int:
        """Blocks held at the end, each on each node."""
        return self.stored_blocks - self.removed_blocks

    def count(self, fact: Fact, unit_blocks: int) -> None:
        """Add one fact."""
        if isinstance(fact, Ended):
            self.requests += 1
            self.stored_blocks += (len(fact.units) - fact.before) * unit_blocks
            longest = len(fact.units) * unit_blocks
            self.longest_chain_blocks = max(self.longest_chain_blocks, longest)
        else:
            self.removed_blocks += len(fact.units) * unit_blocks


async def run(plan: Plan, contenders: Sequence[str], rounds: int, say: Say) -> dict[str, Any]:
    """The figures of every contender by its name, and the load.

    Raises:
        ConfigError: the trace cannot be used.
        KVFerryError: a process failed, or two contenders answered differently.
    """
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as name:
        folder = Path(name)
        load = _write(plan, contenders, folder, say)
        speeds: dict[str, list[Speed]] = {one: [] for one in contenders}
        for number in range(1, rounds + 1):
            for one in contenders:
                say(f"{one}, round {number} of {rounds}")
                answer = await _measured(SPEED, one, folder, plan.lookups)
                speeds[one].append(msgspec.json.decode(answer, type=Speed))
        check_answers(speeds)
        result: dict[str, Any] = {
            "load": {
                **msgspec.to_builtins(plan),
                **msgspec.to_builtins(load),
                "held_blocks": load.held_blocks,
            }
        }
        for one in contenders:
            say(f"memory of {one}")
            answer = await _measured(MEMORY, one, folder, plan.lookups)
            memory = msgspec.json.decode(answer, type=Memory)
            result[one] = _summed(speeds[one], memory, load)
    return result


async def _measured(how: str, one: str, folder: Path, lookups: int) -> bytes:
    files = str(folder / one), str(folder / QUESTIONS_FILE)
    return await answer_of(CHILD, how, one, *files, str(lookups), wait_s=WAIT_S)


def _write(plan: Plan, contenders: Sequence[str], folder: Path, say: Say) -> Load:
    """The load in the form that each contender's engines give it."""
    requests = requests_of(plan)
    load = Load()
    for number, one in enumerate(contenders):
        say(f"writing the events for {one}")
        facts = facts_of(plan, requests)
        counted = facts if number else _counted(facts, load, plan.unit_blocks)
        write_events(folder / one, _reported(reports(one, plan.unit_blocks), counted))
    chains = [hashes_of(units, plan.unit_blocks) for units in questions_of(plan, requests)]
    write_questions(folder / QUESTIONS_FILE, chains)
    load.questions = len(chains)
    load.question_blocks = sum(len(one) for one in chains) / SHORT_BYTES / len(chains)
    return load


def _counted(facts: Iterator[Fact], load: Load, unit_blocks: int) -> Iterator[Fact]:
    for fact in facts:
        load.count(fact, unit_blocks)
        yield fact


def _reported(writer: LedgerReports | RouterReports, facts: Iterator[Fact]) -> Iterator[Report]:
    for fact in facts:
        yield from writer.of(fact)


def check_answers(found: dict[str, list[Speed]]) -> None:
    """Units are whole samples, so all contenders must come to the same prefixes.

    Raises:
        KVFerryError: they do not.
    """
    answers = {
        one: {figures.answered_blocks for figures in rounds} for one, rounds in found.items()
    }
    if len(set().union(*answers.values())) != 1:
        told = ", ".join(f"{one} {sorted(blocks)}" for one, blocks in answers.items())
        raise KVFerryError(f"the indexes do not agree on the blocks that are held: {told}")


def _summed(rounds: Sequence[Speed], memory: Memory, load: Load) -> dict[str, Any]:
    """Of each time the least disturbed round."""
    apply_s = min(one.apply_s for one in rounds)
    first = rounds[0]
    return {
        "apply_blocks_per_s": round((load.stored_blocks + load.removed_blocks) / apply_s),
        "lookup_us_p50": round(min(one.lookup_us_p50 for one in rounds), 2),
        "lookup_us_p99": round(min(one.lookup_us_p99 for one in rounds), 2),
        "bytes_per_block": round(memory.grown_bytes / load.held_blocks, 2),
        "apply_s": round(apply_s, 4),
        "events": first.events,
        "event_bytes": first.event_bytes,
        "answered_blocks": first.answered_blocks,
    }
