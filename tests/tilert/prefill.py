"""The prefill side of the contract: our senders over a KV cache in recorded shapes."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import torch
from tests.tilert.nodes import DecodeNode
from tests.unit.tilert.caches import EngineCache

from kvferry_backends.registry import create_writer
from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.metadata import SendOrder
from kvferry_connectors.tilert.options import parse
from kvferry_connectors.tilert.outcomes import RankOutcome
from kvferry_connectors.tilert.sender import Sender

LOOPBACK = {"devices": ["lo"], "environment": {"UCX_TLS": "tcp"}}
OUTCOME_S = 90.0


class Prefill:
    """One rank of an engine, or all of it."""

    def __init__(self, cache: EngineCache, *, rank: int = 0, ranks: int = 1, **options: Any):
        given = {"profile": cache.profile.name, "staging_bytes": 128 << 20, **options}
        parsed, _ = parse(given)
        self.cache = cache
        self.outcomes: queue.Queue[RankOutcome] = queue.Queue()
        self.sender = Sender(
            parsed,
            fit(cache.profile, cache.config),
            rank=rank,
            ranks=ranks,
            make_writer=lambda: create_writer("nixl", LOOPBACK),
            report=self.outcomes.put,
        )
        self.sender.register(cache.tensors, cache.blocks)

    def begin(
        self, rid: str, node: DecodeNode, ids: list[int], tokens: int, *, last: int = 7
    ) -> None:
        """A step begins that completes this prompt."""
        order = SendOrder(
            request=f"engine-{rid}",
            rid=rid,
            host="127.0.0.1",
            port=node.ctrl_port,
            tokens=tokens,
            last_prompt_token=last,
            block_ids=(tuple(ids),),
            sampling={"temperature": 0.0},
        )
        self.sender.begin([order])

    def compute(self) -> None:
        """The step computes its layers and is over."""
        for name in self.cache.tensors:
            self.sender.computed(name)
        self.sender.step_over()

    def outcome(self) -> RankOutcome:
        """The next one."""
        return self.outcomes.get(timeout=OUTCOME_S)

    def send(self, rid: str, node: DecodeNode, ids: list[int], tokens: int) -> RankOutcome:
        """Begin, compute, and wait for the outcome."""
        self.begin(rid, node, ids, tokens)
        self.compute()
        return self.outcome()


@contextmanager
def prefill(cache: EngineCache, **options: Any) -> Iterator[Prefill]:
    """An engine whose threads have all ended afterwards."""
    made = Prefill(cache, **options)
    try:
        yield made
    finally:
        made.sender.close()
        assert made.sender.under_way == 0


def decode(node: DecodeNode, rid: str, *, timeout_s: float = 60.0) -> httpx.Response:
    """Ask the node to decode what it was sent."""
    body = {"rid": rid, "first_token_id": 3, "max_tokens": 2, "timeout_s": timeout_s}
    return httpx.post(f"{node.url}/pd/decode", json=body, timeout=120.0, trust_env=False)


def close_to(found: Any, wanted: Any) -> bool:
    """Equal but for the last bit of bfloat16."""
    a, b = found.to(torch.float64), wanted.to(torch.float64)
    return bool(((a - b).abs() <= b.abs() / 128 + 1e-5).all())


def injected_as(layers: list[Any], cache: EngineCache, ids: list[int], tokens: int) -> bool:
    """Whether a node's engine was given this prompt of this cache."""
    turn = torch.ones((1, 1), dtype=torch.float64)
    for _ in range(7):  # Sylvester's Hadamard matrix of 128 rows.
        turn = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), turn)
    turn /= 128**0.5
    if len(layers) != cache.profile.layers:
        return False
    for number, (ki, kv, pe) in enumerate(layers):
        keys, latent, rope = cache.expected(number, ids, tokens)
        exact = cache.form.name == "bf16"
        if not torch.equal(pe, rope) or (exact and not torch.equal(kv, latent)):
            return False
        if not close_to(kv, latent) or not close_to(ki, keys.to(torch.float64) @ turn):
            return False
    return True
