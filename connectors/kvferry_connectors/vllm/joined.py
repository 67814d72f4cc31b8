"""What exists once the engine knows its space: keys, hints, sessions, the peer server."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from kvferry.errors import ConfigError
from kvferry.node.agent.agent import Identity, NodeAgent
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.hints import HintBook
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.pull.follower import Follower
from kvferry_connectors.vllm import neighbours
from kvferry_connectors.vllm.metadata import RankHello, SessionIdentity
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.space import limits, scheduler_components, space_id

log = logging.getLogger("kvferry.vllm")

HASH_WAIT_S = 60.0
"""vLLM sets its hash seed a moment after it built the connector."""


class Joined:
    """A node that is part of its space."""

    def __init__(
        self,
        options: Options,
        key: bytes,
        node: str,
        incarnation: str,
        components: dict[str, str],
        table: ExportTable,
        hellos: list[RankHello],
        block_size: int,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.components = components
        self.space = space_id(components)
        self.hints = HintBook(key, self.space)
        identity = PeerIdentity(
            node=node, space=self.space, incarnation=incarnation, components=components
        )
        self.client = PeerClient(key, identity)
        self._follow_client = PeerClient(key, identity)  # Its calls wait at the source.
        self.follower = Follower(self._follow_client, silent_s=options.pin_timeout_ms / 1000)
        self.server = PeerServer(key, identity, table, host=options.host, port=options.peer_port)
        self.server.start()
        port = self.server.address.rpartition(":")[2]
        self.address = f"{options.advertised}:{port}"

        self.block_size, self.ranks = block_size, len(hellos)
        self.reads_host = all(h.reads_host for h in hellos)
        self.host_slots = min(h.host_slots for h in hellos)
        """Blocks that the host tier can hold; 0 without one."""
        self.rank_block_bytes = max(h.block_bytes for h in hellos)

    @property
    def session(self) -> SessionIdentity:
        """What the workers need for sessions of their own."""
        return SessionIdentity(self.node, self.space, self.incarnation, self.components)

    def close(self) -> None:
        """Stop serving peers and end our sessions."""
        self.server.close()
        self.client.close()
        self._follow_client.close()
        self.follower.close()


class Joiner:
    """Waits, on a thread of its own, until everything a node needs to join is known."""

    def __init__(
        self,
        vllm_config: Any,
        options: Options,
        key: bytes,
        node: str,
        incarnation: str,
        table: ExportTable,
        agent: NodeAgent,
        *,
        blocks: int,
        warnings: tuple[str, ...],
    ) -> None:
        self._config = vllm_config
        self._options = options
        self._key = key
        self._node = node
        self._incarnation = incarnation
        self._table = table
        self._agent = agent
        self._blocks = blocks
        self._warnings = warnings
        self._hellos: dict[int, RankHello] = {}
        self._ready = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._root = b""
        """Parent of a chain's first block, once it was asked for."""
        self.joined: Joined | None = None
        """Set last; the engine thread only reads it."""
        self.problem = ""
        """Why this engine cannot share at all."""

    def start(self) -> None:
        """Begin to wait."""
        self._thread = threading.Thread(target=self._run, name="kvferry-join", daemon=True)
        self._thread.start()

    def hello(self, hello: RankHello) -> None:
        """A rank introduced itself."""
        self._hellos[hello.rank] = hello
        if len(self._hellos) == hello.ranks:
            self._ready.set()

    def close(self) -> None:
        """Stop waiting, or stop serving."""
        self._stopped.set()
        self._ready.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        if self.joined is not None:
            self.joined.close()

    def _run(self) -> None:
        self._ready.wait()
        if self._stopped.is_set():
            return
        hellos = [self._hellos[rank] for rank in sorted(self._hellos)]
        self.problem = next((h.problem for h in hellos if h.problem), "")
        if self.problem:
            log.warning("kvferry serves without sharing: %s", self.problem)
            return
        probe = self._probe()
        if probe is None:
            return
        try:
            self.joined = self._join(hellos, probe)
            neighbours.joined(self._config, self._space(self.joined))
        except (ConfigError, OSError) as error:
            self.problem = f"the peer server cannot listen on {self._options.host}: {error}"
            log.error(
                "kvferry serves without sharing: %s; set `host` and `peer_port`", self.problem
            )

    def _join(self, hellos: list[RankHello], probe: bytes) -> Joined:
        components = scheduler_components(self._config, probe, self._options.model_id)
        components.update(hellos[0].components)
        joined = Joined(
            self._options,
            self._key,
            self._node,
            self._incarnation,
            components,
            self._table,
            hellos,
            int(self._config.cache_config.block_size),
        )
        self._table.set_ranks([RankEndpoint(h.key, h.backends, h.host_backends) for h in hellos])
        common = [name for name in hellos[0].backends if all(name in h.backends for h in hellos)]
        left_out = [f"backend {name}: {why}" for name, why in hellos[0].left_out.items()]
        if hellos[0].host_problem:
            left_out.append(f"host tier: {hellos[0].host_problem}")
        self._agent.join(
            Identity(
                space=joined.space,
                incarnation=self._incarnation,
                address=joined.address,
                block_size=joined.block_size,
                components=components,
                backends=tuple(common),
                blocks=self._blocks,
                block_bytes=sum(h.block_bytes for h in hellos),
                warnings=self._warnings + limits(self._config) + tuple(left_out),
                host_blocks=joined.host_slots,
                role=self._options.role,
                lease_blocks=self._options.lease_blocks(self._blocks),
                lease_ms=self._options.lease_ms,
                watermark_blocks=self._options.watermark_blocks(self._blocks),
                min_pull_tokens=self._options.min_pull_tokens,
                retain_max_ms=self._options.retain_max_ms,
            )
        )
        log.info(
            "kvferry: node %s in space %s, peers at %s, backends %s",
            joined.node,
            joined.space,
            joined.address,
            ", ".join(common) or "none",
        )
        return joined

    def _space(self, joined: Joined) -> neighbours.SpaceFacts:
        return neighbours.SpaceFacts(
            space=joined.space,
            components=joined.components,
            block_tokens=joined.block_size,
            block_bytes=joined.rank_block_bytes,
            ranks=joined.ranks,
            algorithm=str(self._config.cache_config.prefix_caching_hash_algo),
            root=self._root,
            key=self._key,
        )

    def _probe(self) -> bytes | None:
        """A fixed block hashed by the engine's own function, once its seed is set."""
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils

        deadline = time.monotonic() + HASH_WAIT_S
        while getattr(kv_cache_utils, "NONE_HASH", None) is None:
            if time.monotonic() > deadline or self._stopped.wait(0.01):
                self.problem = "vLLM never set its block hash seed"
                log.error("kvferry serves without sharing: %s", self.problem)
                return None
        self._root = bytes(kv_cache_utils.NONE_HASH)
        function = get_hash_fn_by_name(self._config.cache_config.prefix_caching_hash_algo)
        size = int(self._config.cache_config.block_size)
        probe = kv_cache_utils.hash_block_tokens(function, None, list(range(size)), None)
        if len(probe) != 32:
            self.problem = (
                f"block hashes of {len(probe)} bytes are too short to prove a prefix: "
                "use --prefix-caching-hash-algo sha256_cbor"
            )
            log.error("kvferry serves without sharing: %s", self.problem)
            return None
        return bytes(probe)
