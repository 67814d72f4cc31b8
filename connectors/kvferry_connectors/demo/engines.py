"""vLLM engines on the CPU, as OpenAI servers with the kvferry connector."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.ports import HeldPort
from kvferry_connectors.demo.process import Child
from kvferry_connectors.demo.settings import HOST, MODEL_NAME, DemoSettings

HEALTH_EVERY_S = 0.25
SHUTDOWN_S = 10
SOURCE = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', re.M)
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
ENVIRONMENT = {
    # One thread an engine, not bound: by default each engine takes every core, or all the first.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": HOST,
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


def child_environment(run: RunFolder) -> dict[str, str]:
    """Our environment for child processes, without what would lead them to another ledger."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVFERRY_")}
    own = {
        "TMPDIR": str(run.temporary),
        # A state file of our own: other commands must not take this ledger for the machine's.
        "XDG_STATE_HOME": str(run.path / "state"),
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **ENVIRONMENT, **own}


class Engine:
    """One engine under its name; it keeps name and port over a restart."""

    def __init__(
        self,
        name: str,
        role: str,
        pool: int,
        *,
        settings: DemoSettings,
        model: Path,
        run: RunFolder,
    ) -> None:
        """
        Args:
            pool: tokens that its KV cache holds.
            run: whose cluster key it uses.
        """
        self.name = name
        self._role = role
        self._pool = pool
        self._settings = settings
        self._model = model
        self._run = run
        self.port = HeldPort()
        self.child: Child | None = None

    @property
    def url(self) -> str:
        """The root of its HTTP server."""
        return f"http://{HOST}:{self.port.number}"

    async def start(self, nats_url: str) -> None:
        """Start the process; :meth:`wait_healthy` waits for it."""
        self.child = Child(
            self.name,
            self._argv(nats_url),
            env=child_environment(self._run),
            log=self._run.log(self.name),
        )
        await self.child.start()

    async def wait_healthy(self, client: httpx.AsyncClient) -> None:
        """
        Raises:
            DemoError: it ended, or does not answer in time.
        """
        assert self.child is not None
        deadline = time.monotonic() + self._settings.start_s
        while time.monotonic() < deadline:
            self.child.check()
            with contextlib.suppress(httpx.TransportError):
                answer = await client.get(f"{self.url}/health")
                if answer.status_code == 200:
                    return
            await asyncio.sleep(HEALTH_EVERY_S)
        raise DemoError(
            f"{self.name} does not answer after {self._settings.start_s:.0f} s:\n"
            f"{self.child.tail()}",
            self.child.log,
        )

    async def kill(self) -> None:
        """End it as a crash would."""
        if self.child is not None:
            await self.child.kill()

    async def stop(self) -> None:
        """End it cleanly, or by force when it does not obey."""
        if self.child is not None:
            await self.child.stop(self._settings.stop_s)

    async def sources(self, client: httpx.AsyncClient) -> dict[str, int]:
        """vLLM's own count of prompt tokens by where they came from, since its start.

        Raises:
            DemoError: it does not answer, or its metrics do not have them.
        """
        try:
            text = (await client.get(f"{self.url}/metrics")).text
        except httpx.HTTPError as error:
            raise DemoError(f"{self.name}: /metrics: {type(error).__name__} {error}") from error
        found = {name: int(float(value)) for name, value in SOURCE.findall(text)}
        if set(found) != set(SOURCES):
            raise DemoError(f"{self.name}: /metrics counts {sorted(found)}, not {SOURCES}")
        return found

    def _connector(self, nats_url: str) -> dict[str, Any]:
        """vLLM's ``--kv-transfer-config``."""
        return {
            "kv_connector": "KVFerryConnector",
            "kv_connector_module_path": "kvferry_connectors.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "nats_url": nats_url,
                "node": self.name,
                "role": self._role,
                "key": f"file:{self._run.key}",
                "verify": "full",
                "plan_deadline_ms": self._settings.plan_ms,
                "pin_timeout_ms": self._settings.pin_ms,
            },
        }

    def _argv(self, nats_url: str) -> list[str]:
        settings = self._settings
        # Not `vllm serve`: it asks for a distribution called vllm, and the CPU one is vllm-cpu.
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self._model), "--served-model-name", MODEL_NAME),
            *("--host", HOST, "--port", str(self.port.number)),
            *("--dtype", settings.dtype, "--enforce-eager"),
            *("--max-model-len", str(settings.max_model), "--max-num-seqs", "8"),
            *("--max-num-batched-tokens", str(settings.step)),
            *("--long-prefill-token-threshold", str(settings.long_prefill)),
            *("--block-size", str(settings.block)),
            *("--kv-cache-memory-bytes", str(settings.pool_bytes(self._pool))),
            *("--prefix-caching-hash-algo", "sha256_cbor"),
            # vLLM's default of 0 kills the engine core before kvferry can write node_closed.
            *("--shutdown-timeout", str(SHUTDOWN_S)),
            *("--kv-transfer-config", json.dumps(self._connector(nats_url))),
        ]
