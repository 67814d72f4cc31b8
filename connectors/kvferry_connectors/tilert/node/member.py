"""What a node is made of once it knows its space: memory, leases, and what serves them to peers."""

from __future__ import annotations

import secrets
import time
from importlib.metadata import version

from kvferry.errors import ConfigError
from kvferry.node.agent.settings import Identity
from kvferry.node.export.grants import verify_host_grant
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.outbox.outbox import Outbox
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import PeerIdentity
from kvferry.ports.backend import Backend
from kvferry_connectors.tilert.node.memory import Memory
from kvferry_connectors.tilert.node.settings import NodeOptions
from kvferry_connectors.tilert.node.tier import FIRST, Tier
from kvferry_connectors.tilert.origin import Origin
from kvferry_connectors.vllm.planes import start_planes

ROLE = "tilert"


class Member:
    """What exists once the node knows its space.

    Attributes:
        memory: where blocks lie.
        tier: which are kept.
    """

    def __init__(
        self,
        options: NodeOptions,
        origin: Origin,
        key: bytes,
        incarnation: str,
        exports: ExportTable,
        outbox: Outbox,
    ) -> None:
        """
        Raises:
            ConfigError, BackendError: it cannot be a member, with the cure.
        """
        slots = options.host_tier_bytes // origin.block_bytes
        if not slots:
            raise ConfigError(
                f"--host-tier-bytes {options.host_tier_bytes} do not hold one block of "
                f"{origin.block_bytes} bytes; raise it"
            )
        self.space = origin.space
        self.components = origin.components
        self._grant_key = secrets.token_bytes(32)
        self.memory = Memory(origin.pages, slots, pinned=_has_cuda())
        self.tier = Tier(exports, outbox, incarnation, slots)
        exports.check = self.tier.present
        self.planes: list[Backend] = []
        self._server: PeerServer | None = None
        try:
            found, absent = start_planes(options.planes(), self.memory.regions, self._authorize)
            self.planes = found
            if not found:
                raise ConfigError(f"no data plane works here: {absent}")
            identity = PeerIdentity(options.node, origin.space, incarnation, origin.components)
            self._server = PeerServer(key, identity, exports, options.host, options.peer_port)
            self._server.start()
        except BaseException:
            self.close()
            raise
        port = self._server.address.rpartition(":")[2]
        self.identity = Identity(
            space=origin.space,
            incarnation=incarnation,
            address=f"{options.advertise_host or options.host}:{port}",
            block_size=origin.block_tokens,
            components=origin.components,
            backends=tuple(plane.name for plane in found),
            block_bytes=origin.block_bytes * origin.ranks,
            host_blocks=slots,
            warnings=tuple(f"backend {name}: {why}" for name, why in absent.items()),
            version=version("kvferry"),
            role=ROLE,
            # Of an engine's own cache, which lies with TileRT, it offers and leases nothing.
            lease_blocks=0,
            retain_max_ms=options.retain_max_ms,
        )
        said = {plane.name: plane.describe() for plane in found}
        exports.set_host(FIRST)
        # Each rank of the space's engines has the whole KV and reads it from here.
        exports.set_ranks([RankEndpoint(self._grant_key, {}, said)] * origin.ranks)

    def close(self) -> None:
        """Serve nobody any more."""
        if self._server is not None:
            self._server.close()
        for plane in self.planes:
            plane.close()

    def _authorize(self, transfer: str, grant: bytes, slots: bytes) -> bool:
        now_ms = time.time_ns() // 1_000_000
        return verify_host_grant(self._grant_key, transfer, grant, slots, FIRST, now_ms)


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
