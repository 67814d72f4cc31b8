"""What a CUDA source says of its memory, what a target makes of it, and who is refused by name.

The CUDA driver is a stand-in: there is no GPU here.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.backends.peer_fakes import FakeDriver

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions, Span
from kvferry_backends.identity import own_identity
from kvferry_backends.peer.driver import Extent
from kvferry_backends.peer.shapes import aligned, groups
from kvferry_backends.peer.sharing import OpenedPeer, describe_regions
from kvferry_backends.peer.wire import PeerDescription, decode

OURS = own_identity()
THEIRS = msgspec.structs.replace(OURS, started=OURS.started + 1)
REGIONS = Regions(
    spans=(Span(0x2100, 64, 64), Span(0x1040, 128, 100), Span(0x2000, 16, 8)),
    blocks=4,
    kind="cuda",
)
OWN = Span(0x9000, 64, 64)


def driver(*extents: Extent) -> FakeDriver:
    return FakeDriver(*(extents or (Extent(0x1000, 0x800), Extent(0x2000, 0x800))))


def described(by: FakeDriver, regions: Regions = REGIONS) -> PeerDescription:
    return describe_regions(regions, by, THEIRS, "life")


def test_each_allocation_is_shared_once_and_every_span_found_again() -> None:
    peer = described(driver())
    assert [allocation.base for allocation in peer.allocations] == [0x2000, 0x1000]
    assert decode(msgspec.msgpack.encode(peer)) == peer
    target = driver()
    target.MOVED = 0x70000
    opened = OpenedPeer(peer, target, OURS, OWN)
    assert opened.spans == [(s.address + 0x70000, s.stride, s.length) for s in REGIONS.spans]
    assert sorted(target.mapped) == [0x71000, 0x72000]
    opened.close()
    assert target.mapped == []


def test_memory_of_virtual_memory_management_is_refused_by_name() -> None:
    vmm = driver()
    vmm.legacy = False
    with pytest.raises(BackendError, match=r"sleep mode.*expandable_segments.*next backend"):
        described(vmm)


def test_a_span_over_several_allocations_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match=r"more than one allocation.*PYTORCH_CUDA_ALLOC_CONF"):
        described(driver(Extent(0x1000, 0x800), Extent(0x2000, 0x180)))


def test_a_refusal_of_the_driver_names_the_container() -> None:
    refusing = driver()
    refusing.refuses = "cuIpcGetMemHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)"
    with pytest.raises(BackendError, match=r"CUDA_ERROR_NOT_SUPPORTED.*--ipc=host"):
        described(refusing)


def test_a_failed_mapping_leaves_nothing_mapped() -> None:
    peer = described(driver())

    class Second(FakeDriver):
        def open(self, handle: bytes) -> int:
            self.refuses = "cuIpcOpenMemHandle_v2 failed" if self.mapped else ""
            try:
                return super().open(handle)
            finally:
                self.refuses = ""

    target = Second()
    with pytest.raises(BackendError, match=r"cannot be mapped.*nvidia-smi topo"):
        OpenedPeer(peer, target, OURS, OWN)
    assert target.mapped == []


def test_a_process_reads_its_own_memory_where_it_lies_on_one_gpu_only() -> None:
    peer = msgspec.structs.replace(described(driver()), process=OURS)
    target = driver()
    opened = OpenedPeer(peer, target, OURS, OWN)
    assert opened.spans[0] == (0x2100, 64, 64)
    assert target.mapped == []
    opened.close()
    target.devices[0x2000] = 1
    with pytest.raises(BackendError, match="one GPU only"):
        OpenedPeer(peer, target, OURS, OWN)


def test_another_host_is_refused() -> None:
    far = msgspec.structs.replace(THEIRS, host="another")
    peer = msgspec.structs.replace(described(driver()), process=far)
    with pytest.raises(BackendError, match="another host"):
        OpenedPeer(peer, driver(), OURS, OWN)


@pytest.mark.parametrize(
    ("field", "value"),
    [("allocation", 2), ("allocation", -1), ("offset", 0x7F0), ("offset", -1), ("stride", 0x300)],
)
def test_a_description_that_points_outside_its_memory_is_none(field: str, value: int) -> None:
    peer = described(driver())
    bent = msgspec.structs.replace(peer.spans[0], **{field: value})
    wrong = msgspec.structs.replace(peer, spans=(bent, *peer.spans[1:]))
    with pytest.raises(BackendError, match="span 0 of the peer lies outside"):
        decode(msgspec.msgpack.encode(wrong))


def test_a_handle_of_another_size_is_none() -> None:
    peer = described(driver())
    short = msgspec.structs.replace(peer.allocations[0], handle=b"short")
    wrong = msgspec.structs.replace(peer, allocations=(short, *peer.allocations[1:]))
    with pytest.raises(BackendError, match="handle"):
        decode(msgspec.msgpack.encode(wrong))


def test_spans_of_one_length_go_into_one_launch() -> None:
    assert [(g.length, g.spans) for g in groups([8, 64, 8, 100])] == [
        (100, (3,)),
        (64, (1,)),
        (8, (0, 2)),
    ]
    assert aligned([(0x1000, 64, 64), (0x2008, 72, 8)], 8)
    for odd in ((0x1001, 64, 64), (0x1000, 65, 64), (0x1000, 64, 60)):
        assert not aligned([(0x1000, 64, 64), odd], 8)
