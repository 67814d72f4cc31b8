"""Digest and snapshots: equal states, equal bytes' meaning, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from tests.unit.core.support import Ledger, requested, retained, started

from kvferry.core.digest import digest
from kvferry.core.events import Inventory, PinEnded, RequestEnded, Transferred
from kvferry.core.snapshot import Snapshot, decode, encode, fingerprint
from kvferry.core.state import State
from kvferry.errors import CodecError


def busy(tokens: int = 100) -> Ledger:
    """A state with something in every corner, a reorder buffer and a torn inventory included."""
    ledger, (p0, d0) = started("p0", "d0")
    p0.write(
        retained("a"),
        retained("b", tier="hbm", ttl_ms=9),
        requested("t"),
        Transferred(
            transfer="t",
            request="r",
            source="d0",
            start=0,
            count=10,
            tokens=160,
            bytes=4_096,
            backend="tcp",
            read_ms=1.5,
        ),
        RequestEnded(
            request="r", prompt_tokens=tokens, computed_tokens=tokens, ttft_ms=30.0, output_tokens=3
        ),
        requested("open"),
    )
    d0.write(PinEnded(transfer="early", target="p0", granted=3, how="abort"))
    d0.write(Inventory(part=0, last=False, offers=(retained("inventory"),)))
    p0.batch(retained("late"))
    p0.write(retained("held"), requested("held"))
    d0.epoch = 5
    d0.write(retained("early"))
    return ledger


def test_a_snapshot_is_the_state() -> None:
    state = busy().state
    again = decode(encode(state))
    assert again == state
    assert digest(again) == digest(state)
    assert encode(again) == encode(state)


def test_the_digest_sees_one_altered_event() -> None:
    assert digest(busy().state) == digest(busy().state)
    assert digest(busy().state) != digest(busy(tokens=101).state)


def test_the_digest_does_not_depend_on_the_order_of_dicts() -> None:
    state = busy().state
    other = decode(encode(state))
    space = next(iter(other.spaces.values()))
    space.offers = dict(reversed(space.offers.items()))
    space.totals.events = dict(reversed(space.totals.events.items()))
    assert digest(other) == digest(state)


def test_the_digest_ignores_what_changes_nothing() -> None:
    state = busy().state
    before = digest(state)
    state.position += 5
    state.dropped["duplicate"] = 3
    state.space("nothing-ever-happened-here")
    assert digest(state) == before


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_the_digest_and_the_schema_are_the_same_in_another_process(seed: str) -> None:
    code = (
        "from tests.unit.core.test_core_snapshot import busy\n"
        "from kvferry.core.digest import digest\n"
        "from kvferry.core.snapshot import fingerprint\n"
        "print(digest(busy().state), fingerprint())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [digest(busy().state), fingerprint()]


def test_a_torn_or_foreign_snapshot_is_refused() -> None:
    data = encode(busy().state)
    for torn in (b"", b"junk", data[:-7], data[:50], msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(CodecError):
            decode(torn)


def test_another_schema_is_refused() -> None:
    snapshot = msgspec.msgpack.decode(encode(State()), type=Snapshot)
    other = msgspec.structs.replace(snapshot, fingerprint="0" * 16)
    with pytest.raises(CodecError, match="schema"):
        decode(msgspec.msgpack.encode(other))


def test_another_digest_is_refused() -> None:
    snapshot = msgspec.msgpack.decode(encode(busy().state), type=Snapshot)
    other = msgspec.structs.replace(snapshot, digest="0" * 64)
    with pytest.raises(CodecError, match="digest"):
        decode(msgspec.msgpack.encode(other))


def test_a_changed_state_is_refused() -> None:
    whole = msgspec.msgpack.decode(encode(busy().state), type=Snapshot)
    changed = bytes(whole.state).replace(b"127.0.0.1:7000", b"127.0.0.1:7001")
    other = msgspec.structs.replace(whole, state=msgspec.Raw(changed))
    with pytest.raises(CodecError, match="digest"):
        decode(msgspec.msgpack.encode(other))
