"""No backend that serves on request sends a byte without a grant for exactly those blocks."""

from __future__ import annotations

import hashlib
import hmac
import struct
import threading
from collections.abc import Callable

import pytest
from tests.contract.conftest import deny
from tests.contract.pools import Pool, snapshot

from kvferry.errors import BackendError
from kvferry.ports.backend import Backend, ReadOutcome, ReadRequest

Serve = Callable[..., Backend]
KEY = b"a key that only the source has"
WAIT_S = 30.0


def sign(transfer: str, blocks: list[int]) -> bytes:
    packed = struct.pack(f"<{len(blocks)}I", *blocks)
    return hmac.digest(KEY, transfer.encode() + packed, hashlib.sha256)


def signed_only(transfer: str, grant: bytes, packed: bytes) -> bool:
    return hmac.compare_digest(grant, hmac.digest(KEY, transfer.encode() + packed, hashlib.sha256))


def read(
    target: Backend, source: Backend, transfer: str, grant: bytes, blocks: list[int]
) -> ReadOutcome:
    posted = target.post(
        ReadRequest(
            transfer=transfer,
            peer=source.describe(),
            grant=grant,
            source_blocks=blocks,
            target_blocks=range(len(blocks)),
            deadline_s=WAIT_S,
        )
    )
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    return outcome


@pytest.fixture
def pools() -> tuple[Pool, Pool]:
    source_pool, target_pool = Pool(64, [65536]), Pool(64, [65536])
    source_pool.fill("secret")
    return source_pool, target_pool


def test_a_grant_opens_exactly_its_blocks(serve: Serve, pools: tuple[Pool, Pool]) -> None:
    source_pool, target_pool = pools
    if serve(Pool(1, [1])).capabilities.one_sided:
        pytest.skip("one-sided: the source takes no part in a read")
    source, target = serve(source_pool, signed_only), serve(target_pool, deny)
    blocks = list(range(10, 50))
    grant = sign("t.1", blocks)
    before = snapshot(target_pool)
    for transfer, presented, asked in (
        ("t.1", b"", blocks),
        ("t.1", grant[:-1] + bytes([grant[-1] ^ 1]), blocks),
        ("t.2", grant, blocks),
        ("t.1", grant, blocks[:-1]),
        ("t.1", grant, [*blocks[:-1], 63]),
        ("t.1", grant, blocks[::-1]),
    ):
        outcome = read(target, source, transfer, presented, asked)
        assert outcome.error == "refused"
        assert "grant" in outcome.detail
        assert outcome.bytes == 0
        assert snapshot(target_pool) == before
    # Positive control, on the same two backends: refusals leave nothing broken behind.
    assert read(target, source, "t.1", grant, blocks).error == ""
    assert target_pool.get(0) == source_pool.get(10)


def test_a_failing_check_refuses(serve: Serve, pools: tuple[Pool, Pool]) -> None:
    source_pool, target_pool = pools
    calls = threading.Event()

    def broken(transfer: str, grant: bytes, packed: bytes) -> bool:
        calls.set()
        raise RuntimeError("the pin table is gone")

    source, target = serve(source_pool, broken), serve(target_pool)
    if source.capabilities.one_sided:
        pytest.skip("one-sided: the source takes no part in a read")
    before = snapshot(target_pool)
    assert read(target, source, "t", b"", [1, 2, 3]).error == "refused"
    assert calls.is_set()
    assert snapshot(target_pool) == before


def test_source_blocks_out_of_range_are_not_read(serve: Serve, pools: tuple[Pool, Pool]) -> None:
    source_pool, target_pool = pools
    source, target = serve(source_pool), serve(target_pool)
    before = snapshot(target_pool)
    for blocks in ([64], [0, 1, 1 << 31], [*range(40), 4_000_000_000]):
        try:
            outcome = read(target, source, "t", b"", blocks)
        except BackendError:
            continue
        assert outcome.error == "refused"
    assert snapshot(target_pool) == before


def test_nothing_is_served_after_close(serve: Serve, pools: tuple[Pool, Pool]) -> None:
    source, target = serve(pools[0]), serve(pools[1])
    assert read(target, source, "t.1", b"", [3]).error == ""
    description = source.describe()
    before = snapshot(pools[1])
    source.close()
    posted = target.post(
        ReadRequest(
            transfer="t.2", peer=description, grant=b"", source_blocks=[4], target_blocks=[1]
        )
    )
    outcome = posted.wait(WAIT_S)
    assert outcome is not None
    assert outcome.error == "unreachable"
    assert snapshot(pools[1]) == before
    target.close()
    with pytest.raises(BackendError):
        target.post(
            ReadRequest(
                transfer="t.3", peer=description, grant=b"", source_blocks=[4], target_blocks=[1]
            )
        )
