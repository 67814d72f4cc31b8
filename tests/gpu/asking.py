"""Plain HTTP to the servers of a measurement: completions, counters, resets."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

_BY_SOURCE = re.compile(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)".*\} (\S+)$', re.M)
_POOL = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.M)
_BLOCKS = re.compile(r'(\bblock_size|\bnum_gpu_blocks)="(\d+)"')
RESETS_MAX = 100
RESET_PAUSE_S = 0.1


@dataclass
class Streamed:
    """A streamed completion. Seconds count from when the request went out."""

    first_s: float = 0.0
    total_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    params: dict[str, Any] | None = None
    """The reply's ``kv_transfer_params``."""


def get(port: int, path: str, timeout_s: float = 30.0) -> str:
    """The body of a GET."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as reply:
        return str(reply.read().decode())


def post(port: int, path: str, body: dict[str, Any], timeout_s: float = 300.0) -> Any:
    """One JSON request; returns the open response."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=timeout_s)


def completion(ids: list[int], tokens: int, params: dict[str, Any] | None) -> dict[str, Any]:
    """The body of a completion that runs for exactly ``tokens``."""
    body: dict[str, Any] = {"model": "m", "prompt": ids, "max_tokens": tokens, "temperature": 0}
    body["ignore_eos"] = True
    if params is not None:
        body["kv_transfer_params"] = params
    return body


def prefill(port: int, ids: list[int], params: dict[str, Any] | None) -> dict[str, Any]:
    """One token; returns the reply's kv_transfer_params."""
    with post(port, "/v1/completions", completion(ids, 1, params)) as reply:
        found = json.loads(reply.read())
    return dict(found.get("kv_transfer_params") or {})


def stream(port: int, ids: list[int], tokens: int, params: dict[str, Any] | None) -> Streamed:
    """A streamed completion of ``tokens`` tokens."""
    body = {**completion(ids, tokens, params), "stream": True, "return_token_ids": True}
    found = Streamed()
    began_s = time.perf_counter()
    with post(port, "/v1/completions", body) as reply:
        for raw in reply:
            line = raw.decode().strip()
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            if not found.first_s:
                found.first_s = time.perf_counter() - began_s
            chunk = json.loads(line[5:])
            for choice in chunk.get("choices", []):
                found.tokens += choice.get("token_ids") or []
            found.params = chunk.get("kv_transfer_params") or found.params
    found.total_s = time.perf_counter() - began_s
    return found


def prompt_tokens_by_source(port: int) -> dict[str, int]:
    """vLLM's own count of where prompt tokens came from, since the server started."""
    return {name: int(float(value)) for name, value in _BY_SOURCE.findall(get(port, "/metrics"))}


def pool_tokens(metrics: str) -> int:
    """How many tokens a server's KV pool holds, by its ``/metrics``; 0 where they do not say."""
    found = _POOL.search(metrics)
    sizes = dict(_BLOCKS.findall(found[1])) if found else {}
    return int(sizes.get("block_size", 0)) * int(sizes.get("num_gpu_blocks", 0))


def reset_prefix_cache(port: int, *, external: bool) -> None:
    """Empty a server's own prefix cache; with ``external`` what its connector keeps as well.

    Raises:
        RuntimeError: blocks stay in use.
    """
    path = "/reset_prefix_cache" + ("?reset_external=true" if external else "")
    for _ in range(RESETS_MAX):
        with post(port, path, {}) as reply:
            if json.loads(reply.read() or b"{}").get("success", True):
                return
        time.sleep(RESET_PAUSE_S)
    raise RuntimeError(f"the cache of the server at port {port} stays in use")
