"""What a TileRT node generates is kept, and a peer of the space pulls it, block for block.

TileRT's published server runs with an engine that plays back known rows; prefill is our senders
over a cache in vLLM's shapes; the ledger, the node and the peer's transfers are real.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
import torch
from tests.e2e.plane import Plane, of
from tests.tilert.conftest import StartNode
from tests.tilert.nodes import DecodeNode
from tests.tilert.playback import write_rows
from tests.tilert.prefill import Prefill
from tests.tilert.returning import KEY, Peer, Turn, cache_page, drawn, ended, facts_of
from tests.unit.tilert.caches import EngineCache

from kvferry.core.events import (
    Evicted,
    NodeClosed,
    NodeJoined,
    PinEnded,
    RequestEnded,
    Retained,
)
from kvferry.node.pull.puller import PullResult
from kvferry_connectors.demo.tilert.profile import PROFILE as TINY
from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.node.convert import hadamard
from kvferry_connectors.tilert.node.reasons import REASONS
from kvferry_connectors.tilert.origin import ROWS
from kvferry_connectors.tilert.origins import pages_of
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, Profile, RowFormat

PROFILE = Profile(name=TINY["name"], layers=TINY["layers"], version=TINY["version"])
"""The small profile, with an indexer."""
BLOCKS = 9
SLOTS = 7
"""Of the host tier."""


class Bench:
    """A ledger, a node that keeps, a prefill and a peer."""

    def __init__(self, plane: Plane, name: str, node: DecodeNode, prefill: Prefill) -> None:
        self.plane = plane
        self.name = name
        self.node = node
        self.prefill = prefill
        cache = prefill.cache
        self.pages = pages_of(fit(cache.profile, cache.config), cache.config)
        self.peer = Peer(facts_of(prefill), self.pages)

    def close(self) -> None:
        self.peer.close()
        self.prefill.sender.close()

    def turn(self, seed: int, prompt: int = 150, answer: int = 60, **kvferry: Any) -> Turn:
        """A prompt and an answer unlike any other's."""
        draw = random.Random(seed)
        tokens = [draw.randrange(10, 90_000) for _ in range(prompt + answer)]
        return Turn(self.prefill, tokens[:prompt], tokens[prompt:], **kvferry)

    def kept(self, turn: Turn) -> int:
        """Run a turn that has to be kept; how many blocks are."""
        turn.run(self.node)
        event = self.ended(turn)
        assert event.not_kept == "", self.node.tail()
        return event.kept_blocks

    def not_kept(self, turn: Turn) -> str:
        """Run a turn that is answered all the same; why it is not kept."""
        turn.run(self.node)
        event = self.ended(turn)
        assert event.kept_blocks == 0
        assert event.not_kept in REASONS
        return event.not_kept

    def pull(self, turn: Turn) -> PullResult:
        return self.peer.pull(self.joined(), turn.chain)

    def ended(self, turn: Turn) -> RequestEnded:
        seen = self.plane.wait_for(
            lambda found: ended(found, turn.rid), f"the end of {turn.rid} at the node", 60.0
        )
        event = ended(seen, turn.rid)
        assert event is not None
        return event

    def joined(self) -> NodeJoined:
        seen = self.plane.wait_for(
            lambda found: [
                r for r in found if isinstance(r.event, NodeJoined) and r.node == self.name
            ],
            f"{self.name} joined",
        )
        return [r.event for r in seen if isinstance(r.event, NodeJoined) and r.node == self.name][
            -1
        ]

    def retained(self, turn: Turn) -> Retained:
        def of(found: list[object]) -> list[Retained]:
            return [
                r.event  # type: ignore[attr-defined]
                for r in found
                if isinstance(r.event, Retained) and r.event.request == turn.rid  # type: ignore[attr-defined]
            ]

        return of(self.plane.wait_for(of, f"what is kept of {turn.rid}", 60.0))[0]


@pytest.fixture(scope="module")
def plane(tilert_package: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    made = Plane(tmp_path_factory.mktemp("plane"))
    try:
        made.start_coordinator()
        yield made
    finally:
        made.stop()


def started(plane: Plane, decode_node: StartNode, form: RowFormat) -> Bench:
    cache = EngineCache(PROFILE, form, blocks=BLOCKS)
    block_bytes = PROFILE.layers * (64 * form.row_bytes + 8448)
    name = f"t-{form.name.replace('_', '-')}"
    node = decode_node(
        wait=False,
        model=PROFILE.name,
        dtype="fp8_ds_mla" if form is FP8_DS_MLA else "bfloat16",
        keep=(
            *("--node", name, "--nats", plane.url, "--key", KEY, "--backend", "tcp"),
            *("--host-tier-bytes", str(SLOTS * block_bytes), "--return-within-ms", "6000"),
            *("--engine", "tests.tilert.playback:make"),
        ),
    )
    return Bench(plane, name, node, Prefill(cache, profile=msgspec.to_builtins(PROFILE)))


@pytest.fixture(scope="module")
def benches(plane: Plane, decode_node: StartNode) -> Iterator[dict[str, Bench]]:
    made: dict[str, Bench] = {}
    try:
        for form in (FP8_DS_MLA, BF16):
            made[form.name] = started(plane, decode_node, form)
        for one in made.values():
            one.node.wait_ready()
        yield made
    finally:
        for one in made.values():
            one.close()


@pytest.fixture
def bench(benches: dict[str, Bench]) -> Bench:
    return benches["fp8_ds_mla"]


def compare(bench: Bench, turn: Turn, rows: list[Any]) -> None:
    """Every byte of what the peer has pulled of a turn: the prompt's are prefill's own, and what
    was generated is the engine's as the format rounds it."""
    form, first = bench.prefill.cache.form, len(turn.prompt)
    for nth, page in enumerate(bench.pages):
        pulled = torch.stack([bench.peer.page(nth, n) for n in range(len(turn.chain))])
        ours = torch.stack([cache_page(bench.prefill.cache, page, n) for n in turn.blocks])
        ki, kv, pe = rows[page.layer]
        if page.kind == ROWS:
            flat = pulled.reshape(-1, form.row_bytes)
            assert torch.equal(flat[:first], ours.reshape(-1, form.row_bytes)[:first])
            made = flat[first:]
            last = first + len(made)
            assert torch.equal(
                made[:, form.kv_bytes :].contiguous().view(torch.bfloat16), pe[first:last]
            )
            assert rounded(latent(made, form), kv[first:last], form)
        else:
            codes, scales = pulled[:, : 64 * 128], pulled[:, 64 * 128 :]
            keys = codes.reshape(-1, 128), scales.reshape(-1, 4)
            ours_keys = ours[:, : 64 * 128].reshape(-1, 128), ours[:, 64 * 128 :].reshape(-1, 4)
            for mine, theirs in zip(keys, ours_keys, strict=True):
                assert torch.equal(mine[:first], theirs[:first])
            value = keys[0][first:].contiguous().view(torch.float8_e4m3fn).float()
            value = value * keys[1][first:].contiguous().view(torch.float32)
            assert rounded(
                value, ki[first : first + len(value)].float() @ hadamard(128), FP8_DS_MLA
            )


def latent(rows: Any, form: RowFormat) -> Any:
    """The latent part of rows as vLLM stores them."""
    if form is BF16:
        return rows[:, :1024].contiguous().view(torch.bfloat16)
    codes = rows[:, :512].contiguous().view(torch.float8_e4m3fn).float()
    scale = rows[:, 512:528].contiguous().view(torch.float32)
    return codes * scale.repeat_interleave(128, 1)


def rounded(found: Any, wanted: Any, form: RowFormat) -> bool:
    """Equal up to what the format rounds: nothing in bfloat16; in e4m3 half of the last of three
    bits, and less than the smallest step of the row's scale near zero."""
    if form is BF16:
        return torch.equal(found, wanted)
    a, b = found.double(), wanted.double()
    step = b.abs().amax(-1, keepdim=True) / 448 * 2**-9 * 2
    return bool(((a - b).abs() <= b.abs() / 16 + step).all())


@pytest.mark.parametrize("form", ["fp8_ds_mla", "bf16"])
def test_a_peer_pulls_prompt_and_answer(benches: dict[str, Bench], form: str) -> None:
    bench = benches[form]
    turn = bench.turn(1, session="s1")
    rows = drawn(turn, seed=3)
    turn.run(bench.node, rows)
    event = bench.ended(turn)
    assert (event.kept_blocks, event.not_kept) == (3, ""), bench.node.tail()
    assert (event.prompt_tokens, event.output_tokens, event.outcome) == (150, 60, "length")
    kept = bench.retained(turn)
    assert (kept.tier, kept.count, kept.tail, kept.session) == ("host", 3, turn.chain[-1], "s1")
    result = bench.pull(turn)
    assert (result.ok, result.count, result.host_blocks) == (True, 3, 3), result
    assert result.verified_blocks == 3
    compare(bench, turn, rows)
    with pytest.raises(AssertionError):
        compare(bench, turn, drawn(turn, seed=4))


def test_a_prompt_that_ends_with_a_block_and_an_answer_that_ends_before_one(bench: Bench) -> None:
    turn = bench.turn(2, prompt=128, answer=65)
    rows = drawn(turn, seed=5)
    turn.run(bench.node, rows)
    assert bench.ended(turn).kept_blocks == 3  # 64 of the 65 tokens have a row.
    assert bench.pull(turn).count == 3
    compare(bench, turn, rows)
    assert bench.not_kept(bench.turn(3, prompt=128, answer=64)) == "nothing_new"


def test_the_same_words_again_take_no_room(bench: Bench) -> None:
    first = bench.turn(4)
    assert bench.kept(first) == 3
    again = Turn(bench.prefill, first.prompt, first.answer)
    assert bench.kept(again) == 3
    longer = Turn(bench.prefill, first.prompt, [*first.answer, *range(64)])
    assert bench.kept(longer) == 4
    assert bench.pull(longer).count == 4
    seen = bench.plane.wait_for(
        lambda found: of(found, Evicted, offer=bench.retained(again).offer), "it is superseded"
    )
    assert {e.reason for e in of(seen, Evicted, offer=bench.retained(again).offer)} == {
        "superseded"
    }


def test_what_was_not_used_for_longest_gives_way_and_is_not_granted(bench: Bench) -> None:
    turns = [bench.turn(seed) for seed in (10, 11, 12)]
    for turn in turns:
        assert bench.kept(turn) == 3  # Of seven slots.
    first = bench.retained(turns[0]).offer
    seen = bench.plane.wait_for(
        lambda found: [e for e in of(found, Evicted, offer=first) if e.keep < 2], "it gave way"
    )
    assert {e.reason for e in of(seen, Evicted, offer=first)} == {"pressure"}
    assert bench.pull(turns[2]).count == 3
    refused = bench.pull(turns[0])
    assert refused.count < 3
    whole = bench.turn(13, prompt=64 * SLOTS + 1, answer=64)
    assert bench.not_kept(whole) == "no_room"
    assert bench.pull(turns[2]).count == 3  # Nothing was given up for it.


def test_rows_that_come_too_late_hold_the_answer_up_no_longer_than_the_bound(bench: Bench) -> None:
    slow = bench.node.folder / "slow"
    slow.touch()
    late = bench.turn(20)
    try:
        assert bench.not_kept(late) == "too_slow"
    finally:
        slow.unlink()
    assert bench.kept(bench.turn(21)) == 3
    assert bench.pull(late).ok is False


def test_an_aborted_generation_is_kept_as_far_as_it_came(bench: Bench) -> None:
    turn = bench.turn(30, prompt=127, answer=40)
    write_rows(bench.node.folder, drawn(turn, seed=1), turn.answer[1:])
    bench.node.pause()
    try:
        turn.send(bench.node)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(turn.decode, bench.node)
            bench.node.wait_for(bench.node.decoding, "the generation")
            cancelled = httpx.post(
                f"{bench.node.url}/pd/cancel", json={"rid": turn.rid}, trust_env=False
            )
            assert cancelled.status_code == 200
            made = asked.result().json()["token_ids"]
    finally:
        bench.node.resume()
    event = bench.ended(turn)
    assert event.outcome == "aborted"
    assert event.output_tokens == len(made)
    # The first token has a row once the second was made, and fills the prompt's last block.
    assert (event.kept_blocks, event.not_kept) == ((2, "") if len(made) > 1 else (0, "nothing_new"))


def test_an_engine_that_fails_answers_as_without_us(bench: Bench) -> None:
    fail = bench.node.folder / "fail"
    turn = bench.turn(31)
    fail.touch()
    try:
        turn.send(bench.node)
        answer = turn.decode(bench.node)
    finally:
        fail.unlink()
    assert answer.status_code == 500
    assert "as the test wants it" in answer.json()["error"]
    assert bench.ended(turn).not_kept == "decode_failed"
    assert bench.kept(bench.turn(32)) == 3


def test_what_cannot_be_said_to_be_of_this_space_is_not_kept(bench: Bench) -> None:
    assert bench.kept(bench.turn(40)) == 3
    cases = {
        "wrong_space": facts_of(bench.prefill, model="other@2"),
        "bad_key": facts_of(bench.prefill, key="hex:" + "00" * 32),
        "no_origin": None,
    }
    for number, (why, facts) in enumerate(cases.items()):
        turn = bench.turn(41 + number)
        turn.facts = facts
        assert bench.not_kept(turn) == why
        assert bench.pull(turn).ok is False


def test_tenants_share_nothing(bench: Bench) -> None:
    mine = bench.turn(50, salt="mine")
    theirs = Turn(bench.prefill, mine.prompt, mine.answer, salt="theirs")
    assert bench.kept(mine) == 3
    assert bench.pull(mine).count == 3
    assert set(mine.chain).isdisjoint(theirs.chain)
    assert bench.pull(theirs).ok is False
    bare = Turn(bench.prefill, mine.prompt, mine.answer)
    assert bench.pull(bare).ok is False
    short = bench.turn(51, prompt=40, answer=60, salt="mine")
    assert bench.not_kept(short) == "no_origin"


def test_the_last_turn_of_a_session_leaves_nothing(bench: Bench) -> None:
    first = bench.turn(60, session="over")
    assert bench.kept(first) == 3
    last = Turn(bench.prefill, first.prompt, first.answer, session="over", end=True)
    assert bench.not_kept(last) == "session_end"
    offer = bench.retained(first).offer
    seen = bench.plane.wait_for(lambda found: of(found, Evicted, offer=offer), "it ended")
    assert [(e.reason, e.keep) for e in of(seen, Evicted, offer=offer)] == [("session_end", 0)]
    assert bench.pull(first).ok is False


def test_a_peer_without_the_key_gets_nothing(bench: Bench) -> None:
    turn = bench.turn(70)
    assert bench.kept(turn) == 3
    stranger = Peer(facts_of(bench.prefill, key="hex:" + "00" * 32), bench.pages, "stranger")
    try:
        result = stranger.pull(bench.joined(), turn.chain)
    finally:
        stranger.close()
    assert (result.ok, result.stage) == (False, "pin")


def test_while_paused_nothing_is_kept_and_what_was_goes(bench: Bench) -> None:
    turn = bench.turn(80)
    assert bench.kept(turn) == 3
    space = facts_of(bench.prefill).space
    assert bench.plane.cli("pause", "--node", bench.name, "--space", space).returncode == 0
    offer = bench.retained(turn).offer
    seen = bench.plane.wait_for(lambda found: of(found, Evicted, offer=offer), "it was given up")
    assert of(seen, Evicted, offer=offer)[0].reason == "paused"
    assert bench.not_kept(bench.turn(81)) == "paused"
    assert bench.plane.cli("resume", "--node", bench.name, "--space", space).returncode == 0
    deadline = time.monotonic() + 60.0
    while True:
        again = bench.turn(int(time.monotonic() * 1000))
        again.run(bench.node)
        if bench.ended(again).kept_blocks:
            break
        assert time.monotonic() < deadline


def test_the_commands_tell_of_it(bench: Bench) -> None:
    turn = bench.turn(90, session="told")
    assert bench.kept(turn) == 3
    assert bench.pull(turn).count == 3
    bench.plane.wait_for(lambda found: of(found, PinEnded, how="intact"), "the pin's end")
    explained = bench.plane.cli("explain", turn.rid)
    assert "3 blocks kept" in explained.stdout, explained
    status = bench.plane.cli("status")
    assert bench.name in status.stdout, status
    audit = bench.plane.cli("audit", "--live")
    assert audit.returncode == 0, audit


def test_leases_end_with_the_process(benches: dict[str, Bench]) -> None:
    bench = benches["bf16"]
    bench.joined()
    bench.node.end()
    bench.plane.wait_for(
        lambda found: [
            r for r in found if r.node == bench.name and isinstance(r.event, NodeClosed)
        ],
        "its farewell",
    )
