"""What a TileRT node generates is kept, and a peer of the space pulls it, block for block.

TileRT's published server runs with an engine that plays back known rows; prefill is our senders
over a cache in vLLM's shapes; the ledger, the node and the peer's transfers are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.e2e.plane import Plane
from tests.tilert.conftest import StartNode
from tests.tilert.nodes import DecodeNode
from tests.tilert.prefill import Prefill
from tests.tilert.returning import KEY, Peer, Turn, cache_page, drawn, ended, facts_of
from tests.unit.tilert.caches import EngineCache

from kvferry.core.events import NodeJoined, RequestEnded, Retained
from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.node.convert import hadamard
from kvferry_connectors.tilert.origin import ROWS
from kvferry_connectors.tilert.origins import pages_of
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, RowFormat, find

BLOCKS = 8


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


@pytest.fixture(scope="module", params=[FP8_DS_MLA, BF16], ids=lambda form: form.name)
def bench(request: pytest.FixtureRequest, plane: Plane, decode_node: StartNode) -> Iterator[Bench]:
    form = request.param
    name = f"t-{form.name.replace('_', '-')}"
    cache = EngineCache(find("dsv32"), form, blocks=BLOCKS)
    block_bytes = 64 * form.row_bytes * 61 + 8448 * 61
    node = decode_node(
        dtype="fp8_ds_mla" if form is FP8_DS_MLA else "bfloat16",
        keep=(
            *("--node", name, "--nats", plane.url, "--key", KEY),
            *("--host-tier-bytes", str(7 * block_bytes), "--return-within-ms", "20000"),
            *("--engine", "tests.tilert.playback:make", "--backend", "tcp"),
        ),
    )
    prefill = Prefill(cache)
    made = Bench(plane, name, node, prefill)
    try:
        yield made
    finally:
        made.peer.close()
        prefill.sender.close()


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


def test_a_peer_pulls_prompt_and_answer(bench: Bench) -> None:
    turn = Turn(bench.prefill, list(range(100, 250)), list(range(500, 560)), session="s1")
    rows = drawn(turn, seed=3)
    turn.run(bench.node, rows)
    event = bench.ended(turn)
    assert (event.kept_blocks, event.not_kept) == (3, ""), bench.node.tail()
    kept = bench.retained(turn)
    assert (kept.tier, kept.count, kept.tail, kept.session) == ("host", 3, turn.chain[-1], "s1")
    result = bench.peer.pull(bench.joined(), turn.chain)
    assert (result.ok, result.count, result.host_blocks) == (True, 3, 3), result
    assert result.verified_blocks == 3
    compare(bench, turn, rows)
    with pytest.raises(AssertionError):
        compare(bench, turn, drawn(turn, seed=4))
