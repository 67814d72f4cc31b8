"""Everything that the demo of TileRT starts: prefill, native decode, TileRT nodes, a router."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from kvferry_connectors.demo.client import Client
from kvferry_connectors.demo.engines import Engine
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.screen import Screen
from kvferry_connectors.demo.settings import PREFILL
from kvferry_connectors.demo.stack import Stack
from kvferry_connectors.demo.texts import text
from kvferry_connectors.demo.tilert.nodes import Node
from kvferry_connectors.demo.tilert.profile import PROFILE
from kvferry_connectors.demo.tilert.settings import NATIVE, NODES, TilertDemoSettings
from kvferry_connectors.demo.together import all_of, together

FIRST_WORDS = 40


class PrefillEngine(Engine):
    """vLLM with both connectors: one for other engines, one for TileRT's nodes."""

    def __init__(self, *args: Any, staging_bytes: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._staging_bytes = staging_bytes

    def _connector(self, nats_url: str) -> dict[str, Any]:
        ferry = super()._connector(nats_url)
        # Under MultiConnector a child cannot see what the parent does about failed loads.
        ferry["kv_connector_extra_config"]["parent_load_failure_policy"] = "recompute"
        tilert = {
            "kv_connector": "KVFerryTileRTConnector",
            "kv_connector_module_path": "kvferry_connectors.tilert.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "profile": PROFILE,
                "staging_bytes": self._staging_bytes,
                "writer_options": {"devices": ["lo"], "environment": {"UCX_TLS": "tcp"}},
                # Generous, for a machine where others run too.
                "connect_timeout_ms": 30_000,
                "admission_window_ms": 30_000,
                "staging_wait_ms": 30_000,
            },
        }
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": [ferry, tilert]},
        }


class TilertStack(Stack):
    """A running installation with TileRT nodes."""

    settings: TilertDemoSettings
    alone: Client
    """The native engine by itself, without a router."""

    def __init__(
        self, settings: TilertDemoSettings, run: RunFolder, model: Path, screen: Screen
    ) -> None:
        self.nodes = {name: Node(name, settings=settings, run=run) for name in NODES}
        super().__init__(settings, run, model, screen)

    def make_engines(self) -> dict[str, Engine]:
        settings = self.settings
        prefill = PrefillEngine(
            PREFILL,
            "prefill",
            settings.prefill_pool,
            settings=settings,
            model=self.model,
            run=self.run,
            staging_bytes=settings.staging_bytes,
        )
        return {
            PREFILL: prefill,
            NATIVE: self._engine(NATIVE, "decode", settings.decode_pool),
        }

    def up_options(self) -> list[str]:
        """A model this small is sooner computed than moved, so plans are not to weigh the two."""
        return ["--cost", "off"]

    def router_options(self) -> list[str]:
        nodes = [
            f"--tilert={name}={node.url},ctrl={node.control_port}"
            for name, node in self.nodes.items()
        ]
        bounds = ["--tilert-wait-max-s", str(self.settings.slot_wait_s)]
        return [*super().router_options(), *nodes, *bounds, "--tokenizer", str(self.model)]

    async def start(self, cleanup: AsyncExitStack) -> None:
        await super().start(cleanup)
        self.alone = Client(self.http, self.engines[NATIVE].url)

    async def start_engines(self, cleanup: AsyncExitStack) -> None:
        """Nodes and engines at once."""
        cleanup.push_async_callback(self._stop_nodes)
        for node in self.nodes.values():
            await node.start(self.nats_url)
        await together(
            super().start_engines(cleanup),
            *(node.wait_healthy(self.http) for node in self.nodes.values()),
        )
        for node in self.nodes.values():
            self.screen.say(f"{node.name}, TileRT's decode server, serves at {node.url}")

    async def wait_joined(self, engine: Engine, before: str) -> None:
        """Under MultiConnector a rank can introduce itself in a step only, so one is made."""
        if engine.name == PREFILL:
            await engine.wait_healthy(self.http)
            await Client(self.http, engine.url).fill(text("first words", FIRST_WORDS))
        await super().wait_joined(engine, before)

    async def _stop_nodes(self) -> None:
        await all_of(*(node.stop() for node in self.nodes.values()))
