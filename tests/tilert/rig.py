"""A router with TileRT nodes, real ones, behind it: what a client can see of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
from tests.tilert.nodes import DecodeNode
from tests.tilert.prefill import Prefill
from tests.tilert.standin import PrefillStandIn, Send
from tests.unit.router.support import FakeEngine, Served, engine_server, start

from kvferry.node.slots import SlotNode
from kvferry.node.slots.timing import SlotTiming
from kvferry_connectors.router.app import create_app
from kvferry_connectors.router.context import Router
from kvferry_connectors.router.settings import EngineUrl, RouterSettings
from kvferry_connectors.router.tilert.pool import TilertPool
from kvferry_connectors.router.tilert.settings import TilertSettings
from kvferry_connectors.tilert.marks import Mark

ANSWER_S = 120.0
BLOCKS = 8
TILERT = {"pool": "tilert"}
OR_NATIVE = {"pool": "tilert", "fallback": True}
PATIENT = SlotTiming(ask_within_s=60.0, try_s=10.0, end_within_s=60.0)
"""A coordinator on a machine that stands still for a while is not one that is gone."""
STATUS_S = 60.0


def make_tokenizer(folder: Path) -> Path:
    """One token for each byte, whose id is the byte, and the special token 256."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    model = models.BPE({letter: i for i, letter in enumerate(letters)}, [])
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


def _byte_of(letter: str) -> int:
    """GPT-2's rule: printable bytes stand for themselves, the others follow from 256 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if ord(letter) in kept:
        return ord(letter)
    others = [one for one in range(256) if one not in kept]
    return others[ord(letter) - 256]


def block_of(prompt: str) -> int:
    """The block of the engine's cache that a prompt lies in: prompts here are no longer."""
    return ord(prompt[0]) % BLOCKS


def by_ours(prefill: Prefill) -> Send:
    """Sends with our own senders, one request after the other as an engine's steps come."""
    lock = asyncio.Lock()

    async def send(mark: Mark, prompt: list[int]) -> None:
        where = SimpleNamespace(ctrl_port=mark.port)
        async with lock:
            await asyncio.to_thread(
                prefill.send, mark.rid, where, [prompt[0] % BLOCKS], len(prompt)
            )

    return send


@dataclass
class Rig:
    """Everything, and a client of it."""

    client: httpx.AsyncClient
    router: Router
    prefill: PrefillStandIn
    native: FakeEngine
    url: str

    @property
    def pool(self) -> TilertPool:
        assert self.router.tilert is not None
        return self.router.tilert

    async def complete(self, prompt: str = "hello", **more: Any) -> httpx.Response:
        body = {"model": "m", "prompt": prompt, "max_tokens": 4, "kvferry": TILERT, **more}
        headers = body.pop("headers", {})
        return await self.client.post("/v1/completions", json=body, headers=headers)

    async def chat(self, text: str = "hello", **more: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        body = {"model": "m", "messages": messages, "max_tokens": 4, "kvferry": TILERT, **more}
        return await self.client.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def rig(
    nats_url: str,
    nodes: dict[str, DecodeNode],
    tokenizer: Path,
    send: Send,
    *,
    idle_limit_s: float = 120.0,
    node: str = "router",
    **bounds: Any,
) -> AsyncIterator[Rig]:
    """A router in front of a prefill stand-in, a native decode stand-in and real TileRT nodes."""
    settings = RouterSettings(
        prefill=(EngineUrl("p0", "http://unset"),),
        decode=(EngineUrl("d0", "http://unset"),),
        nats_url=nats_url,
        node=node,
        connect_timeout_s=ANSWER_S,
        probe_timeout_s=ANSWER_S,
        probe_every_s=0.3,
        drain_s=1.0,
        tilert=TilertSettings(
            nodes=tuple(
                SlotNode(
                    name=name,
                    http=one.url,
                    control=f"127.0.0.1:{one.ctrl_port}",
                    idle_limit_ms=int(idle_limit_s * 1000),
                )
                for name, one in nodes.items()
            ),
            tokenizer=str(tokenizer),
            **{"status_within_s": STATUS_S, **bounds},
        ),
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(patch("kvferry.node.slots.client.SlotTiming", lambda: PATIENT))
        prefill, native = PrefillStandIn(send), FakeEngine("d0")
        servers: list[Served] = []

        async def stop() -> None:
            for one in reversed(servers):
                await one.stop()

        stack.push_async_callback(stop)
        for app in (prefill.app(), native.app()):
            servers.append(await start(engine_server(app)))
        where = {
            "prefill": (EngineUrl("p0", servers[0].url),),
            "decode": (EngineUrl("d0", servers[1].url),),
        }
        app = create_app(replace(settings, **where))
        servers.append(await start(engine_server(app)))
        client = httpx.AsyncClient(base_url=servers[2].url, timeout=ANSWER_S, trust_env=False)
        await stack.enter_async_context(client)
        yield Rig(client, app.state.router, prefill, native, servers[2].url)
