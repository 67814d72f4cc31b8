"""Our own blocks, and what reading into them and serving from them needs."""

from __future__ import annotations

from typing import Any

import msgspec

from kvferry.ports.backend import Regions, Span
from kvferry_backends.layout import check_regions
from kvferry_backends.nixl import descriptors
from kvferry_backends.nixl.options import SLOT_BYTES, NixlOptions
from kvferry_backends.nixl.rings import Rings
from kvferry_backends.nixl.wire import PeerDescription
from kvferry_backends.packing.lanes import Lane, make_lane
from kvferry_backends.packing.packer import Packer, make_packer


class Pool:
    """The registered pool and its staging."""

    def __init__(self, regions: Regions, options: NixlOptions) -> None:
        """
        Raises:
            BackendError: the regions are no pool, or there is no memory for staging.
        """
        check_regions(regions)
        self.regions = regions
        self.spans = regions.spans
        self.widths = tuple(span.length for span in regions.spans)
        self.table = descriptors.table(regions.spans, regions.blocks, regions.device)
        self.areas = descriptors.areas(regions.spans, regions.blocks)
        self.packer: Packer | None = None
        self.rings: Rings | None = None
        if options.rings and options.mode != "direct":
            self.packer = make_packer(regions)
            self.rings = Rings(
                regions.kind,
                regions.device,
                count=options.rings,
                slots=options.slots,
                slot_bytes=options.slot_bytes or SLOT_BYTES[regions.kind],
            )
            self.areas = [*self.areas, self.rings.area]

    @property
    def chunk_max_bytes(self) -> int:
        """The largest chunk that can be packed here; 0 where nothing is packed."""
        return self.rings.slot_bytes if self.rings is not None else 0

    def lane(self) -> Lane:
        """A new lane for packing."""
        return make_lane(self.regions.kind, self.regions.device)

    def point(self) -> Any:
        """Where the engine's own work on these blocks stands; None for host memory."""
        if self.regions.kind != "cuda":
            return None
        from kvferry_backends.packing.cuda import engine_point

        return engine_point(self.regions.device)

    def enter(self) -> None:
        """Make the pool's device the calling thread's own, as UCX wants it."""
        if self.regions.kind == "cuda":
            import torch

            torch.cuda.set_device(self.regions.device)


class PeerPool(msgspec.Struct, frozen=True):
    """A source's blocks, as its description has them."""

    spans: tuple[Span, ...]
    widths: tuple[int, ...]
    table: Any

    @classmethod
    def of(cls, peer: PeerDescription) -> PeerPool:
        """
        Raises:
            BackendError: its numbers make no pool.
        """
        spans = tuple(Span(*span) for span in peer.spans)
        return cls(
            spans,
            tuple(span.length for span in spans),
            descriptors.table(spans, peer.blocks, peer.device),
        )
