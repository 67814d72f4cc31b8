"""A node that keeps, a prefill and a peer, and how what the peer pulls is compared."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import torch
from tests.e2e.plane import Plane
from tests.tilert.nodes import DecodeNode, StartNode
from tests.tilert.prefill import Prefill
from tests.tilert.returning import KEY, Peer, Turn, cache_page, ended, facts_of
from tests.unit.tilert.caches import EngineCache

from kvferry.core.events import (
    NodeJoined,
    RequestEnded,
    Retained,
)
from kvferry.core.story_not_kept import NOT_KEPT
from kvferry.node.pull.puller import PullResult
from kvferry_connectors.demo.tilert.profile import PROFILE as TINY
from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.node.convert import hadamard
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
        assert event.not_kept in NOT_KEPT
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


def started(plane: Plane, decode_node: StartNode, form: RowFormat) -> Bench:
    cache = EngineCache(PROFILE, form, blocks=BLOCKS)
    block_bytes = PROFILE.layers * (64 * form.row_bytes + 8448)
    name = f"t-{form.name.replace('_', '-')}"
    node = decode_node(
        wait=False,
        model=PROFILE.name,
        dtype="fp8_ds_mla" if form is FP8_DS_MLA else "bfloat16",
        keep=(
            *("--node", name, "--nats", plane.url, "--key", KEY, "--backends", "tcp"),
            *("--host-tier-bytes", str(SLOTS * block_bytes), "--return-within-ms", "6000"),
            *("--engine", "tests.tilert.playback:make"),
        ),
    )
    return Bench(plane, name, node, Prefill(cache, profile=msgspec.to_builtins(PROFILE)))


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
