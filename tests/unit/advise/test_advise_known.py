"""What advice knows of blocks and links: from the ledger, from the state before it, by options."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.advise.told import Told, computed
from tests.unit.cli.support import converse

from kvferry.core.events import LinkProbed, NodeJoined, Requested
from kvferry.ledger.archive.contents import Range
from kvferry.ledger.archive.log import ArchiveLog
from kvferry.ledger.memory import MemoryLog
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.ledger import advise_ledger
from kvferry.replay.exporting import export, whole
from kvferry.replay.reading import message_at
from kvferry.replay.step import read_batch

OBSERVED = "20 observed pulls had no prediction: 3 ms and what their bytes take on their link"


@pytest.mark.parametrize(
    ("probed", "took_s", "taken"),
    [
        # 80 kB at 10 MB/s, as the option says.
        (False, 0.008, "is taken, with 0.01 GB/s (--link-gb-per-s) for 20 of them"),
        (True, 0.0008, "is taken"),
    ],
)
def test_observed_hints_are_weighed_with_what_blocks_and_links_are_known_to_be(
    probed: bool, took_s: float, taken: str
) -> None:
    told = Told(Costs(kv_bytes_per_token=1_000, link_gb_per_s=0.01))
    if probed:
        told.at(0, "p", LinkProbed(peer="d", backend="tcp", gb_per_s=0.1, floor_ms=1.0, why="x"))
    for number in range(20):
        asked = Requested(request=f"o{number}", source="d", granted=50, miss="observe")
        told.at(number, "p", asked, computed(f"o{number}", miss="observe"))
    report = told.report()
    assert report.saved_s == pytest.approx(20 * (0.4 - 0.003 - took_s))
    assert f"{OBSERVED} {taken}" in report.assumptions


def test_a_request_that_ended_before_its_observed_plan_costs_no_move() -> None:
    told = Told(Costs(kv_bytes_per_token=1_000, link_gb_per_s=0.01))
    asked = Requested(request="o", source="d", granted=50, miss="observe")
    told.at(0, "p", asked, computed("o", miss="observe"))
    alone = told.report()
    told.at(1, "p", Requested(request="late", miss="observe"), computed("late", miss="observe"))
    assert told.report().saved_s == pytest.approx(alone.saved_s)
    told.at(2, "p", msgspec.structs.replace(asked, request="again"))
    told.at(2, "p", computed("again", miss="observe"))
    assert told.report().saved_s == pytest.approx(2 * alone.saved_s), "the control"


def test_of_nodes_whose_joining_is_gone_the_ledger_says_so_and_options_count() -> None:
    told = Told(Costs(kv_bytes_per_token=1_000, link_gb_per_s=0.01))
    told.study.continues(None)
    asked = Requested(request="o", source="d", granted=50, miss="observe")
    told.at(1, "old", asked, computed("o", miss="observe"))
    report = told.report()
    assert report.links == ()
    assert report.repeated_tokens == 0, "nobody knows how many tokens 50 blocks are"
    said = "\n".join(report.assumptions)
    assert "what came before the first message is not counted" in said
    assert "1 turn ran on nodes of which the ledger no longer tells" in said
    assert "with 1,000 bytes a token (--kv-bytes-per-token) for 1 of them and 0.01 GB/s" in said


async def test_a_range_from_the_middle_knows_the_nodes_that_joined_before_it(
    tmp_path: Path,
) -> None:
    log = MemoryLog()
    await converse(log)
    facts = (await whole(log))[FACTS_STREAM]
    joined = [
        seq
        for seq in range(facts.first, facts.last + 1)
        if (stored := await message_at(log, FACTS_STREAM, seq)) is not None
        and any(isinstance(entry.event, NodeJoined) for entry in read_batch(stored).entries)
    ]
    middle = tmp_path / "middle.kvf"
    none = Range(1, 0)
    await export(
        log, middle, {FACTS_STREAM: Range(max(joined) + 1, facts.last), BLOCKS_STREAM: none}
    )
    archive = ArchiveLog(middle)
    report = await advise_ledger(archive, Costs(), "a file")
    await archive.close()
    all_of_it = await advise_ledger(log, Costs(), "a log")
    assert (report.requests, report.repeated_tokens) == (3, all_of_it.repeated_tokens)
    assert not any("no longer tells" in text for text in report.assumptions)
    assert any("what came before" in text for text in report.assumptions)
    assert not any("what came before" in text for text in all_of_it.assumptions)
