"""vLLM servers, a ledger and plain HTTP for the measurements on GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

KEY = "hex:" + "5a" * 32


def post(port: int, path: str, body: dict[str, Any], timeout_s: float = 300.0) -> Any:
    """One JSON request; returns the open response."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=timeout_s)


class Bench:
    """Processes of one measurement, all ended at its end."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        self.nats = ""

    def ledger(self) -> None:
        """Start `kvferry up`."""
        command = [sys.executable, "-m", "kvferry.cli", "up", "--port", "4299", "--json"]
        command += ["--store", str(self.out / "store")]
        self._start(command, "up", {})
        self.nats = "nats://127.0.0.1:4299"
        time.sleep(3)

    def serve(
        self, model: str, gpu: int, port: int, transfer: dict[str, Any] | None, *args: str
    ) -> None:
        """Start one OpenAI server."""
        environment = {
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(5000 + port),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        }
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
        command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--enforce-eager", *args]
        if transfer is not None:
            command += ["--kv-transfer-config", json.dumps(transfer)]
        self.ports.append(port)
        self._start(command, f"serve{port}", environment)

    def kvferry(self, node: str, **options: Any) -> dict[str, Any]:
        """The transfer config of a kvferry node."""
        return {
            "kv_connector": "KVFerryConnector",
            "kv_connector_module_path": "kvferry_connectors.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "nats_url": self.nats,
                "key": KEY,
                "node": node,
                **options,
            },
        }

    def wait_up(self, timeout_s: float = 300.0) -> None:
        """Wait for every server's health."""
        began = time.monotonic()
        for port in self.ports:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=3).read()
                    break
                except OSError:
                    dead = [p for p in self.processes if p.poll() is not None]
                    if dead or time.monotonic() - began > timeout_s:
                        log = (self.out / f"serve{port}.log").read_text()[-5000:]
                        raise SystemExit(f"server {port} did not start:\n{log}") from None
                    time.sleep(1)
        print(f"servers up in {time.monotonic() - began:.0f} s", flush=True)

    def stop(self) -> None:
        """End everything."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    try:
                        os.killpg(process.pid, sent)
                    except ProcessLookupError:
                        continue
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline and any(p.poll() is None for p in self.processes):
                time.sleep(0.2)

    def _start(self, command: list[str], name: str, environment: dict[str, str]) -> None:
        with (self.out / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **environment},
                )
            )


def stream(port: int, body: dict[str, Any]) -> tuple[float, list[int], dict[str, Any] | None]:
    """A streamed completion: seconds to the first token, token ids, kv_transfer_params."""
    began = time.perf_counter()
    first, tokens, params = 0.0, [], None
    for raw in post(port, "/v1/completions", {**body, "stream": True, "return_token_ids": True}):
        line = raw.decode().strip()
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        if not first:
            first = time.perf_counter() - began
        chunk = json.loads(line[5:])
        for choice in chunk.get("choices", []):
            tokens += choice.get("token_ids") or []
        params = chunk.get("kv_transfer_params") or params
    return first, tokens, params


def prefill(port: int, ids: list[int], params: dict[str, Any] | None) -> dict[str, Any]:
    """One token from P; returns its kv_transfer_params."""
    body: dict[str, Any] = {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0}
    body["ignore_eos"] = True
    if params is not None:
        body["kv_transfer_params"] = params
    found = json.loads(post(port, "/v1/completions", body).read())
    return dict(found.get("kv_transfer_params") or {})
