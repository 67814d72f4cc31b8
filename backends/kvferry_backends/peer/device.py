"""What a peer backend does on its GPU: share, map, and copy. The only part that needs one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from kvferry.errors import BackendError
from kvferry.ports.backend import Regions
from kvferry_backends.identity import Identity
from kvferry_backends.peer.driver import CudaDriver
from kvferry_backends.peer.gather import WORD_BYTES, block_lists, launch, span_table
from kvferry_backends.peer.shapes import aligned, groups
from kvferry_backends.peer.sharing import OpenedPeer, describe_regions
from kvferry_backends.peer.wire import PeerDescription


class MappedPeer:
    """A peer's memory in this process, with its span tables on our GPU."""

    def __init__(self, opened: OpenedPeer, tables: tuple[Any, ...], *, wide: bool) -> None:
        self.tables = tables
        self.wide = wide
        self._opened = opened

    def close(self) -> None:
        """Unmap.

        Raises:
            BackendError: the driver refuses.
        """
        self._opened.close()


class CudaDevice:
    """One pool on one GPU, with a stream of its own beside the engine's."""

    def __init__(self, regions: Regions, process: Identity, instance: str) -> None:
        """Share the pool, and compile the kernel so that the first transfer need not wait for it.

        Raises:
            BackendError: CUDA IPC cannot share the pool, or the kernel cannot run.
            BackendUnavailable: there is no CUDA driver.
        """
        self._device = torch.device("cuda", regions.device)
        self._process = process
        self._regions = regions
        self._groups = groups([span.length for span in regions.spans])
        self._placed = [(span.address, span.stride, span.length) for span in regions.spans]
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream(priority=-1)
            with torch.cuda.stream(self._stream):
                self._targets = self._tables([(a, stride) for a, stride, _ in self._placed])
            self._stream.synchronize()  # Also makes the GPU's context current on this thread.
            self._driver = CudaDriver()
        self.description = describe_regions(regions, self._driver, process, instance)
        self._compile()

    def _compile(self) -> None:
        wide = aligned(self._placed, WORD_BYTES)
        try:
            # Block 0 onto itself: the engine has written nothing yet, and nothing changes.
            self._launch(self._targets, [0], [0], wide=wide)[0].synchronize()
        except Exception as error:
            # Triton fails in many ways, for example without a C compiler; none may end the engine.
            raise BackendError(
                f"the gather kernel cannot be made here: {type(error).__name__}: {error}"
            ) from error

    def open(self, peer: PeerDescription) -> MappedPeer:
        """Map a peer's memory.

        Raises:
            BackendError: it cannot be mapped.
        """
        opened = OpenedPeer(peer, self._driver, self._process, self._regions.spans[0])
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            tables = self._tables([(address, stride) for address, stride, _ in opened.spans])
        wide = aligned([*self._placed, *opened.spans], WORD_BYTES)
        return MappedPeer(opened, tables, wide=wide)

    def copy(
        self, peer: MappedPeer, sources: Sequence[int], targets: Sequence[int]
    ) -> tuple[Any, object]:
        """Launch the copy of ``sources[i]`` of the peer into ``targets[i]`` of ours.

        Returns:
            The event after it, and what must live until then.

        Raises:
            RuntimeError: CUDA refuses.
        """
        return self._launch(peer.tables, sources, targets, wide=peer.wide)

    def _launch(
        self,
        source_tables: tuple[Any, ...],
        sources: Sequence[int],
        targets: Sequence[int],
        *,
        wide: bool,
    ) -> tuple[Any, object]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            source_ids, target_ids = block_lists(sources, targets, self._device)
            try:
                for group, ours, theirs in zip(
                    self._groups, self._targets, source_tables, strict=True
                ):
                    launch(theirs, ours, source_ids, target_ids, group.length, wide=wide)
                done = torch.cuda.Event()
                done.record(self._stream)
            except RuntimeError:
                # Whatever was launched must have ended before anybody unmaps or reuses anything.
                with suppress(RuntimeError):
                    self._stream.synchronize()
                raise
        return done, (source_ids, target_ids, source_tables)

    def _tables(self, spans: list[tuple[int, int]]) -> tuple[Any, ...]:
        return tuple(
            span_table([spans[index] for index in group.spans], self._device)
            for group in self._groups
        )
