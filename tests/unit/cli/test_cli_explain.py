"""`kvferry explain` of every kind of thing, as a person reads it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.unit.cli.running import document, run, runner
from tests.unit.replay.dated import TALK
from tests.unit.replay.test_explain_kinds import conversation

from kvferry.cli import guard
from kvferry.cli.main import app
from kvferry.replay.exporting import export, whole


@pytest.fixture
def file(tmp_path: Path) -> str:
    async def write() -> None:
        log = await conversation()
        await export(log, tmp_path / "talk.kvf", await whole(log))

    asyncio.run(write())
    return str(tmp_path / "talk.kvf")


SESSION = """\
session s-1
of requests rt-2, turn-1, turn-2-p
        1  AT  d0 has computed 64 blocks from block 0 on for request turn-1  (detail)
        4  AT  d0 ended request turn-1 (stop): 1,000 prompt tokens = 0 local + 0 pulled + \
1,000 computed, 8 tokens out, first token after 120 ms
        5  AT  d0 offers 64 blocks as d0.1 rev 1 of request turn-1, session s-1
        6  AT  p0, request turn-2-p: pulls 64 of 66 blocks from d0 by hint, predicted 12 ms \
against 90 ms to recompute, transfer p0.7
        7  AT  d0 held 64 blocks for p0 during 22 ms: the blocks were as promised, transfer p0.7
        8  AT  p0 got 64 blocks (1,024 tokens, 262.1 kB) from d0 over tcp in 23 ms: pin 2 ms, \
read 20 ms, settle 1 ms, transfer p0.7
        9  AT  p0 offers 64 blocks as p0.1 rev 1 of request turn-2-p, session s-1
       10  AT  p0 ended request turn-2-p (stop): 1,060 prompt tokens = 0 local + 1,024 pulled \
from d0 + 36 computed, 8 tokens out, first token after 60 ms
       11  AT  r0 answered turn rt-2 (ok) over p0: 1,060 prompt tokens, 8 tokens out, first token \
after 63 ms, all after 310 ms
       12  AT  d0 no longer offers d0.1, 64 blocks gone: the engine needed the memory

times, each on its node's own clock:
  d0  turn-1: computing the prompt 110 ms, to the first token 120 ms, to the end 400 ms
  d0  p0.7: pinned for p0 22 ms
  p0  turn-2-p: pin on d0 2 ms, read over tcp 20 ms, settling 1 ms, the transfer in all 23 ms, \
pulling 23 ms, computing the prompt 30 ms, to the first token 60 ms, to the end 300 ms
  r0  rt-2: to the client's first token 63 ms, to the client's last token 310 ms

session s-1: 1 turn, 2 requests on d0 and p0 in 9.4 s; 2,060 prompt tokens = 0 local + 1,024 \
pulled + 1,036 computed; 1 transfer used, 0 failed
"""


def test_a_session_reads_from_its_first_turn_to_what_it_adds_up_to(file: str) -> None:
    text = run("explain", "s-1", "--file", file)
    assert re.sub(r"\d\d:\d\d:\d\d\.\d{3}", "AT", text) == SESSION
    assert document("explain", "s-1", "--file", file)["kind"] == "session"


def test_a_transfer_and_a_block_name_what_they_are(file: str) -> None:
    transfer = run("explain", "p0.7", "--file", file)
    assert transfer.startswith("transfer p0.7\nof requests turn-2-p\n")
    short = TALK[63].hex()[:16]
    block = run("explain", short, "--file", file)
    assert block.startswith(f"block {short}\nof requests turn-1, turn-2-p\n")
    assert "offered now by p0 (p0.1)" in block


def test_unknown_ids_name_near_ones_of_every_kind_and_how_blocks_are_named(file: str) -> None:
    far = runner.invoke(app, ["explain", "zz", "--file", file])
    assert far.exit_code == guard.TROUBLE
    assert "known requests: turn-of-another" in far.stderr
    assert "known sessions: s-2, s-1" in far.stderr
    assert "known transfers: p0.7" in far.stderr
    between = runner.invoke(app, ["explain", TALK[6].hex(), "--file", file])
    assert between.exit_code == guard.TROUBLE
    assert "one block in every 128 tokens" in between.stderr


def test_a_miss_says_why_and_when(file: str) -> None:
    text = run("explain", "turn-of-another", "--file", file)
    assert "why: never produced: it is the first turn of session s-2" in text
    assert "cure: " in text
