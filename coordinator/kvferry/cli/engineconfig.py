"""What an operator gives to vLLM so that an engine joins this ledger."""

from __future__ import annotations

import json
import shlex
from typing import Any

CONNECTOR = "KVFerryConnector"
CONNECTOR_MODULE = "kvferry_connectors.vllm.connector"


def kv_transfer_config(url: str, node: str) -> dict[str, Any]:
    """The value of ``--kv-transfer-config`` for the engine that shall be called ``node``."""
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"nats_url": url, "node": node},
    }


def engine_flags(url: str, node: str) -> list[str]:
    """Arguments for ``vllm serve``.

    The hash algorithm is one whose hashes mean the same in every process, whatever is hashed.
    """
    return [
        "--prefix-caching-hash-algo",
        "sha256_cbor",
        "--kv-transfer-config",
        json.dumps(kv_transfer_config(url, node), separators=(",", ":")),
    ]


def instructions(url: str) -> str:
    """What `up` prints: ready to copy."""
    flags = engine_flags(url, "p0")
    return f"""\
Start each vLLM server with these flags, and a name of its own in place of p0 (p1, d0, ...):

  vllm serve MODEL {flags[0]} {flags[1]} \\
    {flags[2]} {shlex.quote(flags[3])}

For kvferry commands in another environment:

  export KVFERRY_NATS={shlex.quote(url)}

Then look with `kvferry status` and `kvferry doctor`. Ctrl-C stops; the ledger is kept."""
