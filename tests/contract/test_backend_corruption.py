"""What is damaged on the way is found out, where the transfer is verified."""

from __future__ import annotations

import pytest
from tests.contract.conftest import Serve
from tests.contract.kinds import USABLE, Kind
from tests.contract.pools import Pool
from tests.contract.relay import FlippingRelay

from kvferry.ports.backend import Backend, ReadOutcome, ReadRequest, Verify
from kvferry_backends.tcp.wire import HEAD_BYTES, decode_peer

BLOCK_BYTES = 10_000
WAIT_S = 30.0


@pytest.fixture(
    scope="session",
    params=[kind for kind in USABLE if kind.through],
    ids=lambda kind: kind.label,
)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Only backends whose route can be changed."""
    found: Kind = request.param
    return found


def read_through_relay(
    kind: Kind, serve: Serve, flip_at: int | None, verify: Verify
) -> tuple[ReadOutcome, Pool, Pool]:
    assert kind.through is not None
    source_pool, target_pool = Pool(40, [BLOCK_BYTES]), Pool(40, [BLOCK_BYTES])
    source_pool.fill("fragile")
    relay = FlippingRelay(flip_at)
    try:
        source = serve(source_pool, **kind.through(relay.address))
        relay.upstream = ("127.0.0.1", listening_port(source))
        posted = serve(target_pool, connections=1).post(
            ReadRequest(
                transfer="t",
                peer=source.describe(),
                grant=b"",
                source_blocks=range(40),
                target_blocks=range(40),
                verify=verify,
                deadline_s=WAIT_S,
            )
        )
        outcome = posted.wait(WAIT_S)
    finally:
        relay.close()
    assert outcome is not None
    return outcome, source_pool, target_pool


def listening_port(source: Backend) -> int:
    listener = getattr(source, "_listener", None)
    assert listener is not None
    port: int = listener.port
    return port


def test_the_relay_alone_changes_nothing(kind: Kind, serve: Serve) -> None:
    outcome, source_pool, target_pool = read_through_relay(kind, serve, None, Verify.FULL)
    assert outcome.error == ""
    assert source_pool.memory == target_pool.memory


@pytest.mark.parametrize("block", [0, 17, 39])
def test_a_flipped_byte_is_found_and_its_block_named(kind: Kind, serve: Serve, block: int) -> None:
    flip_at = HEAD_BYTES + block * BLOCK_BYTES + 4321
    outcome, _, _ = read_through_relay(kind, serve, flip_at, Verify.FULL)
    assert outcome.error == "digest"
    assert f"block {block} of 40" in outcome.detail


def test_without_verification_it_stays_unseen(kind: Kind, serve: Serve) -> None:
    """Negative control: it is the digest that finds it, and nothing else would."""
    flip_at = HEAD_BYTES + 17 * BLOCK_BYTES
    outcome, source_pool, target_pool = read_through_relay(kind, serve, flip_at, Verify.OFF)
    assert outcome.error == ""
    assert source_pool.get(17) != target_pool.get(17)
    assert source_pool.get(16) == target_pool.get(16)


def test_a_damaged_head_is_no_answer(kind: Kind, serve: Serve) -> None:
    outcome, _, _ = read_through_relay(kind, serve, 0, Verify.FULL)
    assert outcome.error == "error"
    assert "head" in outcome.detail


def test_the_relayed_address_is_what_peers_get(kind: Kind, serve: Serve) -> None:
    assert kind.through is not None
    source = serve(Pool(1, [1]), **kind.through("127.0.0.1:7100"))
    assert decode_peer(source.describe()).address == "127.0.0.1:7100"
