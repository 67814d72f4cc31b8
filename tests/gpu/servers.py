"""vLLM servers and a ledger for the measurements on GPUs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.gpu.asking import get
from tests.gpu.entry_points import ROOT, write_metadata
from tests.gpu.shape_model import shape_model

KEY = "hex:" + "5a" * 32
NATS_PORT = 4299
START_S = 300.0
END_S = 20.0
TAIL_CHARS = 6_000
CPU_POOL = "64M"
CPU = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
}


class Server:
    """One process with all that it starts, in a group of its own."""

    def __init__(self, argv: list[str], name: str, log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                argv, stdout=out, stderr=out, start_new_session=True, env=environment
            )

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL_CHARS:]


class Bench:
    """The processes of one measurement, all ended at its end, in a scratch folder.

    With ``cpu`` the same servers run vLLM's CPU build with a small model: a rehearsal, whose
    figures mean nothing.
    """

    def __init__(self, *, cpu: bool = False) -> None:
        self.cpu = cpu
        self.nats = ""
        self.work = Path(tempfile.mkdtemp(prefix="kvferry-gpu-"))
        self._servers: list[Server] = []
        self._ports: dict[int, Server] = {}
        self._environment = self._paths()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for server in self._servers:
                print(f"--- {server.name}\n{server.tail()}", file=sys.stderr, flush=True)
        self.stop()
        shutil.rmtree(self.work, ignore_errors=True)

    def _paths(self) -> dict[str, str]:
        paths = [str(ROOT / part) for part in ("coordinator", "backends", "connectors")]
        paths.append(str(ROOT))
        try:
            distribution("kvferry")
        except PackageNotFoundError:
            paths.append(str(write_metadata(self.work / "metadata")))
        paths.append(os.environ.get("PYTHONPATH", ""))
        return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}

    def model(self, given: str, shape: str = "llama8b") -> str:
        """The model to serve: the folder given, or one made here."""
        if given:
            return given
        if self.cpu:
            from kvferry_connectors.demo.model import SMALL, ensure_model

            return str(ensure_model(self.work / "model", SMALL))
        return str(shape_model(self.work / "model", shape))

    def ledger(self) -> None:
        """Start `kvferry up`."""
        argv = [sys.executable, "-m", "kvferry.cli", "up", "--port", str(NATS_PORT), "--json"]
        up = self._start([*argv, "--store", str(self.work / "store")], "up", {})
        self.nats = f"nats://127.0.0.1:{NATS_PORT}"
        until = time.monotonic() + END_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", NATS_PORT), timeout=1).close()
                return
            except OSError:
                if not up.runs or time.monotonic() > until:
                    raise SystemExit(f"the ledger did not start:\n{up.tail()}") from None
                time.sleep(0.1)

    def serve(
        self, model: str, gpu: int, port: int, transfer: dict[str, Any] | None, *args: str
    ) -> Server:
        """Start one OpenAI server that sees one GPU."""
        environment = {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(5000 + port),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            **(CPU if self.cpu else {"CUDA_VISIBLE_DEVICES": str(gpu)}),
        }
        # `vllm serve` asks for a distribution called vllm, and the CPU one is vllm-cpu.
        module = ["vllm.entrypoints.cli.main", "serve"]
        if self.cpu:
            module = ["vllm.entrypoints.openai.api_server", "--model"]
        argv = [sys.executable, "-m", *module, model]
        argv += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--enforce-eager", *args]
        if transfer is not None:
            argv += ["--kv-transfer-config", json.dumps(transfer)]
        server = self._start(argv, f"serve{port}", environment)
        self._ports[port] = server
        return server

    def sizes(self, pool: str, longest: int, cpu_pool: str = CPU_POOL) -> list[str]:
        """Options of every server: dummy weights and a fixed pool on a GPU, or a small rehearsal
        with ``cpu_pool``.

        The pool is fixed because two engines that start on one GPU disturb each other's profile.
        """
        if self.cpu:
            return [
                *("--dtype", "float32", "--max-model-len", "4096", "--block-size", "32"),
                *("--max-num-batched-tokens", "2048", "--kv-cache-memory-bytes", cpu_pool),
            ]
        return [
            *("--load-format", "dummy", "--max-model-len", str(longest)),
            *("--kv-cache-memory-bytes", pool, "--gpu-memory-utilization", "0.3"),
            *("--max-num-batched-tokens", "16384"),
        ]

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

    def wait_up(self) -> float:
        """Wait for every server's health; seconds that it took."""
        began_s = time.monotonic()
        for port, server in self._ports.items():
            while not healthy(port):
                if not server.runs or time.monotonic() - began_s > START_S:
                    raise SystemExit(f"{server.name} did not start:\n{server.tail()}")
                time.sleep(0.5)
        took_s = time.monotonic() - began_s
        print(f"servers up in {took_s:.0f} s", file=sys.stderr, flush=True)
        return took_s

    def kill(self, port: int) -> None:
        """Signal 9 to a server and all that it started."""
        server = self._ports.pop(port)
        server.signal(signal.SIGKILL)
        server.process.wait(END_S)
        self._servers.remove(server)

    def stop(self) -> None:
        """End everything."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [server for server in self._servers if server.runs]
            for server in running:
                server.signal(number)
            until = time.monotonic() + END_S
            while any(server.runs for server in running) and time.monotonic() < until:
                time.sleep(0.1)
        self._servers.clear()
        self._ports.clear()

    def _start(self, argv: list[str], name: str, environment: dict[str, str]) -> Server:
        merged = {**os.environ, **self._environment, **environment}
        server = Server(argv, name, self.work / f"{name}.log", merged)
        self._servers.append(server)
        return server


def healthy(port: int) -> bool:
    try:
        get(port, "/health", timeout_s=3)
    except OSError:
        return False
    return True
