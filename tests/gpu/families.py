"""Pairs of one P and one D that hand KV to each other, each in its own way."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.gpu.asking import prefill, reset_prefix_cache, stream
from tests.gpu.servers import Bench

NOBODY = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What NixlConnector is told where no other engine holds anything."""
REUSE_OFF = {"kvferry": {"reuse": "off"}}
FRAGMENT_PROMPT = (300, 6000)
FRAGMENT_ANSWER = (4, 40)
AT_ONCE = 12


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation: P, then D."""

    p_s: float
    """P's part of the time."""
    ttft_s: float
    """From the request to P until D's first token."""
    answer: list[int]
    hint: dict[str, Any] | None
    """What the next turn's P is to be told, so that it finds D's KV."""
    report: dict[str, Any]
    """What kvferry says of P's request; empty without it."""


def hint_of(params: dict[str, Any] | None) -> dict[str, Any]:
    """What the next kvferry engine is told."""
    return {"kvferry": {"hint": (params or {}).get("kvferry", {}).get("hint")}}


def report_of(params: dict[str, Any] | None) -> dict[str, Any]:
    return dict((params or {}).get("kvferry", {}).get("report") or {})


class Family:
    """One P and one D."""

    def __init__(self, name: str, p: int, d: int, nothing: dict[str, Any]) -> None:
        self.name = name
        self.p, self.d = p, d
        self._nothing = nothing

    def handed(self, params: dict[str, Any] | None) -> dict[str, Any] | None:
        """What an engine's reply has for the next one."""
        return params

    def unhinted(self) -> dict[str, Any]:
        """What P is told of a conversation that begins, where it may have KV from elsewhere."""
        return self._nothing

    def turn(self, ids: list[int], tokens: int, last: dict[str, Any] | None = None) -> Turn:
        """``last`` is the hint of the turn before; without one P computes what it has not."""
        began_s = time.perf_counter()
        from_p = prefill(self.p, ids, last or self._nothing)
        p_s = time.perf_counter() - began_s
        from_d = stream(self.d, ids, tokens, self.handed(from_p))
        return Turn(
            p_s=p_s,
            ttft_s=p_s + from_d.first_s,
            answer=from_d.tokens,
            hint=self.handed(from_d.params),
            report=report_of(from_p),
        )

    def warm_p(self, ids: list[int]) -> None:
        """Let P compute a prompt and keep it."""
        prefill(self.p, ids, self._nothing)

    def forget_p(self) -> None:
        """Empty P's own prefix cache, but nothing that it keeps elsewhere."""
        reset_prefix_cache(self.p, external=False)


class Ferry(Family):
    """kvferry on both."""

    def __init__(self, p: int = 8100, d: int = 8200) -> None:
        super().__init__("kvferry", p, d, REUSE_OFF)

    def handed(self, params: dict[str, Any] | None) -> dict[str, Any] | None:
        return hint_of(params)

    def unhinted(self) -> dict[str, Any]:
        return hint_of(None)

    def forget_p(self) -> None:
        reset_prefix_cache(self.p, external=True)

    def serve(
        self,
        bench: Bench,
        model: str,
        sizes: Sequence[str],
        p_sizes: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Start both; ``options`` go to both connectors, ``p_sizes`` to P in place of ``sizes``."""
        if bench.cpu:  # Engines that share two cores answer late.
            options |= {"plan_deadline_ms": 5_000, "pin_timeout_ms": 5_000}
        bench.serve(model, 0, self.p, bench.kvferry("p0", **options), *(p_sizes or sizes))
        bench.serve(model, 1, self.d, bench.kvferry("d0", **options), *sizes)


class Native(Family):
    """vLLM's NixlConnector both ways; on P the OffloadingConnector beside it if ``offload``."""

    CPU_COPY_BYTES = 48 << 30
    TTL_S = 20
    """With the default of 480 s finished requests fill D's pool and it stands still."""

    def __init__(self, *, offload: bool, p: int = 8101, d: int = 8201) -> None:
        super().__init__("native", p, d, NOBODY)
        self._offload = offload

    def serve(
        self, bench: Bench, model: str, sizes: Sequence[str], p_sizes: Sequence[str] = ()
    ) -> None:
        """Start both; ``p_sizes`` go to P in place of ``sizes``."""
        nixl = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "bidirectional_kv_xfer": True,
                "decoder_kv_blocks_ttl": self.TTL_S,
                "backends": ["UCX"],
            },
        }
        on_p: dict[str, Any] = nixl
        if self._offload:
            copy = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": self.CPU_COPY_BYTES},
            }
            on_p = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"connectors": [nixl, copy]},
            }
        bench.serve(model, 0, self.p, on_p, *(p_sizes or sizes))
        bench.serve(model, 1, self.d, nixl, *sizes)


class Prompts:
    """Random token ids that no other prompt of the measurement shares."""

    def __init__(self, vocabulary: int, seed: int = 1) -> None:
        self.draw = random.Random(seed)
        self._vocabulary = vocabulary

    def fresh(self, count: int) -> list[int]:
        return [self.draw.randrange(10, self._vocabulary) for _ in range(count)]


def fragment(families: Sequence[Family], prompts: Prompts, count: int, longest: int) -> float:
    """Leave the pools as on servers that have run for a while; seconds that it took."""
    began_s = time.monotonic()
    top = min(FRAGMENT_PROMPT[1], longest)
    loads = [
        (prompts.fresh(prompts.draw.randrange(min(FRAGMENT_PROMPT[0], top - 1), top)), tokens)
        for tokens in (prompts.draw.randrange(*FRAGMENT_ANSWER) for _ in range(count))
    ]
    with ThreadPoolExecutor(AT_ONCE * len(families)) as pool:
        jobs: list[Any] = []
        for ids, tokens in loads:
            jobs += [pool.submit(family.turn, ids, tokens) for family in families]
        for job in jobs:
            job.result()
    took_s = time.monotonic() - began_s
    print(f"fragmented in {took_s:.0f} s", file=sys.stderr, flush=True)
    return took_s


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of calls made at the same time."""
    with ThreadPoolExecutor(max(1, len(calls))) as pool:
        return [job.result() for job in [pool.submit(call) for call in calls]]
