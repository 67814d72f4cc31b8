"""Reports of all kinds, also of names that are meant to break a page."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from tests.unit.advise.recorded import trace_line, written
from tests.unit.advise.told import Told, computed, pulled

from kvferry.core.events import Evicted, LinkProbed, Requested, Retained
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.report import Report

ENDLESS = "prefill-" + "0123456789abcdef" * 12
"""A name without any place to break it."""
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
CONTROL = "a\u202eb\u0000c\u2066d"


def of_a_trace(folder: Path) -> Report:
    """Sessions of one to forty turns, with prompts from a thousand tokens to a hundred thousand."""
    draw, lines = random.Random(5), []
    for session in range(60):
        first, at_s = session * 1_000, draw.uniform(0, 1_800)
        blocks = draw.choice((2, 6, 20, 70, 150))
        for _ in range(draw.choice((1, 2, 5, 12, 40))):
            lines.append(trace_line(at_s, list(range(first, first + blocks))))
            blocks, at_s = blocks + draw.randrange(1, 5), at_s + draw.expovariate(1 / 90)
    lines.sort(key=lambda line: float(line["timestamp"]))
    return advise_file(written(folder, lines), Costs(), 600.0)


def of_a_ledger() -> Report:
    """Pulls, misses of many causes, evictions before the next turn, and two links."""
    told = Told()
    for number in range(12):
        told.at(number * 60, "p", computed(f"c{number}", f"s{number}", f"cause_{number % 9}"))
        offer = Retained(
            offer=f"o{number}", rev=1, tier="cache", count=60, tail=b"t", hashes=b"",
            session=f"s{number}",
        )  # fmt: skip
        told.at(number * 60 + 1, "d", offer)
        if number % 3 == 0:
            told.at(
                number * 60 + 9, "d", Evicted(offer=f"o{number}", rev=2, keep=0, reason="reuse")
            )
        told.at(number * 60 + 20, "p", *pulled(str(number)))
    told.at(900, "p", LinkProbed(peer="d", backend="tcp", gb_per_s=2.0, floor_ms=1.0, why="x"))
    return told.report()


def of_an_observed_ledger() -> Report:
    """Nothing was moved; it tells what would have been."""
    told = Told()
    for number in range(24):
        asked = Requested(
            request=f"o{number}", source="d", wanted=62, granted=50, predicted_ms=40.0,
            recompute_ms=400.0, miss="observe",
        )  # fmt: skip
        told.at(number * 20, "p", asked, computed(f"o{number}", f"s{number % 8}", "observe"))
    return told.report()


def badly_named(report: Report) -> Report:
    """The same with names that no page should break on."""
    names = (ENDLESS, HOSTILE, CONTROL, "", " ", "ü" * 90)
    links = tuple(
        msgspec.structs.replace(link, source=name, target=name)
        for name in names
        for link in report.links
    )
    kept = tuple(msgspec.structs.replace(row, reason=name) for name in names for row in report.kept)
    return msgspec.structs.replace(
        report,
        of=f"the file {ENDLESS}{HOSTILE}",
        links=links,
        kept=kept,
        misses=dict.fromkeys(names, 3) | report.misses,
        assumptions=(*names, *report.assumptions),
    )
