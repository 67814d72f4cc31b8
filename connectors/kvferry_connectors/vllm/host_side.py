"""A rank's host tier as a whole: memory, the thread that copies, and what serves it to peers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from kvferry.errors import BackendError
from kvferry.node.export.grants import verify_host_grant
from kvferry.ports.backend import Backend, Regions, Verify
from kvferry_backends.host_tier.memory import make_pool
from kvferry_backends.host_tier.mover import make_mover
from kvferry_connectors.vllm.host_worker import HostWorker
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.planes import start_host_planes

log = logging.getLogger("kvferry.vllm")


class HostSide:
    """The host tier of one rank, or why there is none.

    Attributes:
        slots: blocks that it can hold; 0 where it could not be made.
        problem: why, with the cure.
        described: what each data plane that serves it says of itself, by name.
    """

    def __init__(
        self,
        options: Options,
        engine: Regions,
        backends: Sequence[Backend],
        key: bytes,
        rank: int,
        ranks: int,
    ) -> None:
        """``engine`` is the rank's KV cache, ``backends`` serve it, ``key`` signs its grants."""
        self._key = key
        self._engine_blocks = engine.blocks
        self._planes: list[Backend] = []
        self._worker: HostWorker | None = None
        self.slots = options.host_tier_bytes // ranks // engine.block_bytes
        self.described: dict[str, bytes] = {}
        self.problem = ""
        if not self.slots:
            self.problem = (
                f"host_tier_bytes={options.host_tier_bytes} does not hold one block of "
                f"{engine.block_bytes} bytes on {ranks} ranks; raise it, or set it to 0"
            )
            return
        try:
            pool = make_pool(engine, self.slots)
            mover = make_mover(engine, pool)
        except BackendError as error:
            self.slots, self.problem = 0, str(error)
            return
        self._worker = HostWorker(mover, pool, rank, Verify(options.verify))
        self._planes = start_host_planes(options, backends, pool, self._authorize)
        self.described = {plane.name: plane.describe() for plane in self._planes}

    @property
    def worker(self) -> HostWorker:
        """What copies. Only where there are slots."""
        assert self._worker is not None
        return self._worker

    def close(self) -> None:
        """Stop copying and serving."""
        if self._worker is not None:
            self._worker.close()
        for plane in self._planes:
            plane.close()

    def _authorize(self, transfer: str, grant: bytes, slots: bytes) -> bool:
        now_ms = int(time.time() * 1000)
        return verify_host_grant(self._key, transfer, grant, slots, self._engine_blocks, now_ms)
