"""Hand-made inputs of the vLLM connector's unit tests."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

from kvferry.core.events import TransferFailed, Transferred
from kvferry_connectors.vllm.metadata import RankResult
from kvferry_connectors.vllm.tracked import Pull, PullState, Tracked

BLOCK = 32
NO_TIME = 0.0


def chain(seed: str, count: int, after: list[bytes] | None = None) -> list[bytes]:
    """``count`` chain hashes, each committing to those before it; ``after`` is a prefix."""
    hashes = list(after or [])
    for i in range(count - len(hashes)):
        before = hashes[-1] if hashes else b""
        hashes.append(hashlib.sha256(before + f"{seed}{i}".encode()).digest())
    return hashes


def request(
    name: str,
    hashes: list[bytes],
    *,
    tokens: int | None = None,
    params: Any = None,
    salt: str | None = None,
) -> SimpleNamespace:
    """What the connector reads of vLLM's request."""
    return SimpleNamespace(
        request_id=name,
        block_hashes=hashes,
        num_prompt_tokens=len(hashes) * BLOCK if tokens is None else tokens,
        kv_transfer_params=None if params is None else {"kvferry": params},
        cache_salt=salt,
    )


def tracked(
    name: str,
    hashes: list[bytes],
    *,
    tokens: int | None = None,
    params: Any = None,
    shareable: bool = True,
    salt: str | None = None,
) -> Tracked:
    """A request as the scheduler side remembers it."""
    made = request(name, hashes, tokens=tokens, params=params, salt=salt)
    return Tracked(made, BLOCK, NO_TIME, shareable)


def loading(one: Tracked, transfer: str = "t.1", source: str = "d0") -> Pull:
    """Give the request a pull whose blocks are being loaded."""
    pull = Pull(transfer, 0.0, 0.0)
    pull.source, pull.state = source, PullState.LOADING
    one.pull = pull
    return pull


def result(rank: int = 0, *, ok: bool = True, count: int = 0, **fields: Any) -> RankResult:
    """What one rank reports of transfer ``t.1``."""
    given: dict[str, Any] = {
        "transfer": "t.1",
        "request": "r",
        "stage": "",
        "reason": "",
        "detail": "",
        "fence": "",
        "backend": "tcp",
        "bytes": 0,
        "verified_blocks": 0,
        "pin_ms": 0.0,
        "read_ms": 0.0,
        "settle_ms": 0.0,
        "total_ms": 0.0,
        **fields,
    }
    return RankResult(rank=rank, ok=ok, count=count, **given)


def failed(reason: str) -> TransferFailed:
    """How transfer ``t.1`` failed."""
    return TransferFailed(transfer="t.1", request="r", source="d0", stage="read", reason=reason)


def arrived(blocks: int) -> Transferred:
    """Transfer ``t.1`` brought so many blocks."""
    return Transferred(
        transfer="t.1",
        request="r",
        source="d0",
        start=0,
        count=blocks,
        tokens=blocks * BLOCK,
        bytes=blocks,
        backend="tcp",
    )
