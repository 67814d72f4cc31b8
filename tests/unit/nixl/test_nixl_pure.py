"""What nixl decides without NIXL: options, costs, descriptors, whom to reach, missing packages."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvferry.errors import BackendError, BackendUnavailable, ConfigError
from kvferry.ports.backend import Span
from kvferry_backends.nixl import descriptors, library, reach
from kvferry_backends.nixl.cost import (
    FIRST_GUESS,
    LEARNING,
    TRY_EVERY_READS,
    Costs,
    choose,
    learned,
)
from kvferry_backends.nixl.options import parse_options
from kvferry_backends.nixl.wire import PROTOCOL, PeerDescription, Ready, decode, encode

KIB64 = 65536


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"slotbytes": 1}, "slotbytes"),
        ({"slots": 0}, "slots 0"),
        ({"slot_bytes": 100}, "slot_bytes 100"),
        ({"rings": 1000}, "rings 1000"),
        ({"rings": 0, "mode": "packed"}, "set rings to 1"),
        ({"mode": "fastest"}, "fastest"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"environment": {"PATH": "/tmp"}}, "not PATH"),
        ({"environment": {"UCX_TLS": 3}}, "environment"),
        ({"devices": [""]}, "devices"),
        ({"listen_host": "0.0.0.0"}, "advertise"),
        ({"listen_port": 70000}, "listen_port"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match="nixl backend") as found:
        parse_options(options)
    assert word in str(found.value)


def test_good_options_are_taken() -> None:
    parsed = parse_options({"devices": ["lo"], "environment": {"UCX_TLS": "tcp"}, "rings": 0})
    assert parsed.devices == ("lo",)
    assert parse_options({}).mode == "auto"


def test_a_missing_package_is_named_with_all_that_were_tried(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable) as found:
        library.find(("no_such_nixl", "nor_this"))
    for word in ("no_such_nixl", "nor_this", "kvferry[nixl]", "nixl-cu13"):
        assert word in str(found.value)


def test_a_broken_package_does_not_hide_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for wheels: one whose native library is missing, and one that is whole."""
    for name, bindings in (
        ("broken_nixl", "raise ImportError('libcudart.so.12')"),
        ("whole_nixl", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "_bindings.py").write_text(
            bindings or "class nixlRemoteDisconnectError(Exception): pass"
        )
        (tmp_path / name / "_api.py").write_text(
            "import logging\nlogger = logging.getLogger('whole')\n"
            "class nixl_agent: pass\nclass nixl_agent_config: pass\n"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert library.find(("broken_nixl", "whole_nixl")).package == "whole_nixl"
    with pytest.raises(BackendUnavailable, match=r"broken_nixl: libcudart\.so\.12"):
        library.find(("broken_nixl",))


def tried(costs: Costs) -> Costs:
    return msgspec.structs.replace(costs, direct_reads=1, packed_reads=1)


def test_scattered_blocks_are_packed_and_long_runs_are_not() -> None:
    costs = tried(FIRST_GUESS["cuda"])
    # 7.5 GB of a 60k prompt, once in 120,000 pieces and once in 32.
    big = 120_000 * KIB64
    assert choose(costs, descriptors=120_000, chunks=900, byte_count=big) == "packed"
    assert choose(costs, descriptors=32, chunks=900, byte_count=big) == "direct"
    # A few blocks are not worth a ring.
    assert choose(costs, descriptors=31, chunks=1, byte_count=31 * KIB64) == "direct"


def test_each_mode_is_tried_once_where_it_may_win() -> None:
    costs = Costs(descriptor_s=1e-6, direct_byte_s=1e-10, chunk_s=1e-4, packed_byte_s=3e-10)
    sizes = {"descriptors": 1000, "chunks": 8, "byte_count": 1000 * KIB64}
    assert choose(costs, **sizes) == "direct"
    costs = learned(costs, "direct", 1000, sizes["byte_count"], 0.01)
    assert choose(costs, **sizes) == "packed"
    costs = learned(costs, "packed", 8, sizes["byte_count"], 0.03)
    assert choose(costs, **sizes) == "direct"
    # What seems slower is tried again now and then.
    at_turn = msgspec.structs.replace(costs, direct_reads=TRY_EVERY_READS - 2)
    assert costs.packed(8, sizes["byte_count"]) < 4 * costs.direct(1000, sizes["byte_count"])
    assert choose(at_turn, **sizes) == "packed"
    # What is hopeless is not tried.
    hopeless = msgspec.structs.replace(costs, packed_reads=0, packed_byte_s=1.0)
    assert choose(hopeless, **sizes) == "direct"


@pytest.mark.parametrize("mode", ["direct", "packed"])
def test_costs_follow_what_reads_take(mode: str) -> None:
    truth = Costs(descriptor_s=9e-6, direct_byte_s=4e-11, chunk_s=5e-4, packed_byte_s=9e-11)
    costs = FIRST_GUESS["host"]
    reads = [(4000, 4000 * 2048), (64, 64 * 8_000_000), (800, 800 * KIB64)]
    for _ in range(40):
        for pieces, size in reads:
            took = truth.direct(pieces, size) if mode == "direct" else truth.packed(pieces, size)
            costs = learned(costs, "direct" if mode == "direct" else "packed", pieces, size, took)
    for pieces, size in reads:
        if mode == "direct":
            assert costs.direct(pieces, size) == pytest.approx(truth.direct(pieces, size), rel=0.1)
        else:
            assert costs.packed(pieces, size) == pytest.approx(truth.packed(pieces, size), rel=0.1)
    # The other mode's costs are as they were.
    assert costs.packed_reads == (0 if mode == "direct" else 120)


def test_the_first_read_is_believed_and_later_ones_in_part() -> None:
    costs = Costs(descriptor_s=1e-6, direct_byte_s=0.0 + 1e-30, chunk_s=1.0, packed_byte_s=1.0)
    once = learned(costs, "direct", 1000, 1, 0.004)
    assert once.descriptor_s == pytest.approx(4e-6, rel=1e-6)
    twice = learned(once, "direct", 1000, 1, 0.008)
    assert twice.descriptor_s == pytest.approx(4e-6 * 2**LEARNING, rel=1e-6)
    # A stall of a thousand times is one surprise, not the truth.
    assert learned(once, "direct", 1000, 1, 4.0).descriptor_s < 4e-6 * 2


def test_areas_join_only_what_interleaves() -> None:
    # K and V of each block beside each other, then another allocation that touches the first.
    spans = [Span(1000, 20, 10), Span(1010, 20, 10), Span(1000 + 4 * 20, 8, 8)]
    assert descriptors.areas(spans, 4) == [(1000, 80), (1080, 32)]
    assert descriptors.areas([Span(50, 10, 10), Span(10, 0, 7)], 1) == [(10, 7), (50, 10)]
    assert descriptors.areas([Span(0, 100, 100), Span(10, 100, 5)], 2) == [(0, 200)]


def test_positions_are_span_by_span() -> None:
    found = descriptors.positions(3, 100, np.array([7, 2], dtype=np.int32))
    assert found.dtype == np.int32
    assert found.tolist() == [7, 2, 107, 102, 207, 202]
    table = descriptors.table([Span(64, 16, 8), Span(512, 0, 8)], 3, 5)
    assert table.tolist() == [[64, 8, 5, 16, 3], [512, 8, 5, 8, 3]]
    with pytest.raises(BackendError, match="descriptors"):
        descriptors.table([Span(64, 16, 8)] * 2, 2**30, 0)


def test_descriptors_are_counted_as_nixl_joins_them() -> None:
    dense, gaps = [Span(0, 8, 8)] * 2, [Span(0, 16, 8)] * 2
    one, other = np.array([1, 2, 3, 7, 8]), np.array([4, 5, 6, 7, 9])
    assert descriptors.count(one, one, dense, dense) == 2 * 2
    assert descriptors.count(one, other, dense, dense) == 2 * 3
    assert descriptors.count(one, one, dense, gaps) == 2 * 5


@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_batches_cover_everything_and_are_bounded(kind: str) -> None:
    for total, widths in ((1, [10**9]), (10_000, [KIB64] * 32), (5000, [1])):
        found = list(descriptors.batches(total, widths, kind))
        assert [at for start, stop in found for at in range(start, stop)] == list(range(total))
        for start, stop in found:
            assert stop - start == 1 or (
                (stop - start) * len(widths) <= descriptors.BATCH_DESCRIPTORS
                and (stop - start) * sum(widths) <= descriptors.BATCH_BYTES[kind]
            )


def peer(host: str, rdma: bool) -> PeerDescription:
    return PeerDescription(
        protocol=PROTOCOL,
        address="127.0.0.1:1",
        instance="i",
        host=host,
        rdma=rdma,
        kind="host",
        device=0,
        blocks=1,
        spans=((1, 1, 1),),
        slot_bytes=0,
        metadata=b"",
    )


def test_another_host_is_not_reached_over_tcp() -> None:
    reach.check_reach(peer("here", False), "here", False, allow_tcp=False)
    reach.check_reach(peer("there", True), "here", True, allow_tcp=False)
    reach.check_reach(peer("there", False), "here", False, allow_tcp=True)
    for ours, theirs, whose in ((False, True, "this host"), (True, False, "the peer's host")):
        with pytest.raises(BackendError, match="use backend tcp") as found:
            reach.check_reach(peer("there", theirs), "here", ours, allow_tcp=False)
        assert whose in str(found.value)


def test_words_survive_the_wire_and_junk_is_refused() -> None:
    assert decode(encode(Ready(7))) == Ready(7)
    for junk in (b"", b"\xff", msgspec.msgpack.encode(["ready", "seven"])):
        with pytest.raises(BackendError, match="cannot be read"):
            decode(junk)
