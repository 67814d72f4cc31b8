"""The worker's side: one per rank. Registers memory, executes loads, reports each exactly once."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from kvferry.errors import EngineUnsupported, KVFerryError
from kvferry.node.export.grants import verify_grant
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.keys import load_key
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.pull.follower import Follower
from kvferry.node.pull.puller import Puller, PullJob, PullResult
from kvferry.ports.backend import Backend, Regions, Verify
from kvferry_backends.host_tier.memory import check_budget
from kvferry_connectors.vllm import compat
from kvferry_connectors.vllm.host_side import HostSide
from kvferry_connectors.vllm.layout import regions_of
from kvferry_connectors.vllm.metadata import (
    FerryMetadata,
    FerryWorkerMeta,
    RankHello,
    RankResult,
    SessionIdentity,
)
from kvferry_connectors.vllm.options import Options
from kvferry_connectors.vllm.planes import start_planes
from kvferry_connectors.vllm.space import worker_components

log = logging.getLogger("kvferry.vllm")

CALL_S = 2.0
"""How long a rank waits for a source's answer at least: nobody waits with it but its request."""


class WorkerSide:
    """Moves the bytes of one rank."""

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        options: Options,
        *,
        make_puller: Callable[..., Puller] = Puller,
    ) -> None:
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._options = options
        self._make_puller = make_puller
        self._rank = int(vllm_config.parallel_config.rank)
        self._ranks = int(vllm_config.parallel_config.world_size)
        self._key = secrets.token_bytes(32)
        """Signs the grants for this rank's memory; the scheduler side gets it in our hello."""
        self._backends: list[Backend] = []
        check_budget(options.host_tier_bytes)
        self._host: HostSide | None = None
        self._client: PeerClient | None = None
        self._follow_client: PeerClient | None = None
        self._follower: Follower | None = None
        self._puller: Puller | None = None
        self._jobs: dict[str, str] = {}
        """Transfer to request, for every load that is not reported yet."""
        self._failed_blocks: set[int] = set()
        self._results: list[RankResult] = []
        self._say_hello = False
        self.hello: RankHello | None = None

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The engine's cache exists: serve reads of it from now on."""
        problem = compat.one_full_attention_group(self._cache_config)
        regions: Regions | None = None
        components: dict[str, str] = {}
        left_out: dict[str, str] = {}
        if not problem:
            try:
                regions = regions_of(kv_caches, self._cache_config)
                components = worker_components(self._config, kv_caches)
                self._backends, left_out = start_planes(self._options, regions, self._authorize)
            except (EngineUnsupported, KVFerryError) as error:
                problem = str(error)
        if not problem and not self._backends:
            problem = "no data plane works here: " + "; ".join(
                f"{name}: {why}" for name, why in left_out.items()
            )
        host: HostSide | None = None
        if regions is not None and not problem and self._options.host_tier_bytes:
            host = HostSide(
                self._options, regions, self._backends, self._key, self._rank, self._ranks
            )
            self._host = host if host.slots else None
        self.hello = RankHello(
            rank=self._rank,
            ranks=self._ranks,
            key=self._key,
            backends={backend.name: backend.describe() for backend in self._backends},
            left_out=left_out,
            components=components,
            block_bytes=regions.block_bytes if regions else 0,
            problem=problem,
            reads_host=any("host" in b.capabilities.memory for b in self._backends),
            host_slots=host.slots if host is not None else 0,
            host_backends=host.described if host is not None else {},
            host_problem=host.problem if host is not None else "",
        )
        self._say_hello = True

    def _authorize(self, transfer: str, grant: bytes, blocks: bytes) -> bool:
        return verify_grant(self._key, transfer, grant, blocks, int(time.time() * 1000))

    # --- each step --------------------------------------------------------------------------

    def take(self, meta: FerryMetadata) -> None:
        """Start what the scheduler ordered. Returns at once."""
        for job in meta.loads:
            if job.transfer in self._jobs:
                continue
            self._jobs[job.transfer] = job.request
            if job.host_slots is not None:
                assert self._host is not None
                self._host.worker.load(job)
                continue
            assert meta.identity is not None
            puller = self._ensure_puller(meta.identity)
            puller.submit(
                PullJob(
                    transfer=job.transfer,
                    request=job.request,
                    address=job.address,
                    incarnation=job.incarnation,
                    hashes=job.hashes,
                    start=job.start,
                    target_blocks=job.target_blocks,
                    rank=self._rank,
                    ranks=self._ranks,
                    verify=Verify(self._options.verify),
                    deadline_s=job.deadline_ms / 1000,
                    follow=job.follow,
                )
            )
        for transfer in meta.cancels:
            if transfer in self._jobs and self._puller is not None:
                self._puller.cancel(transfer)
            if transfer in self._jobs and self._host is not None:
                self._host.worker.cancel(transfer)
        for order in meta.copies:
            assert self._host is not None
            self._host.worker.copy(order)

    def finished(self) -> set[str]:
        """Requests whose loads ended since the last call, well or not; each exactly once."""
        if not self._jobs:
            return set()
        ended = self._puller.take() if self._puller is not None else []
        if self._host is not None:
            ended += self._host.worker.take_loaded()
        done = set()
        for result in ended:
            request = self._jobs.pop(result.transfer, None)
            if request is None:
                continue
            done.add(request)
            self._failed_blocks.update(result.failed_blocks)
            self._results.append(self._ranked(result))
        return done

    def failed_blocks(self) -> set[int]:
        """Blocks without valid KV among the loads just reported."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def worker_meta(self, *, hello: bool) -> FerryWorkerMeta | None:
        """What the scheduler side must know of this step; None when there is nothing."""
        hellos = []
        if hello and self._say_hello and self.hello is not None:
            self._say_hello = False
            hellos.append(self.hello)
        copied = self._host.worker.take_copied() if self._host is not None else []
        if not hellos and not self._results and not copied:
            return None
        results, self._results = self._results, []
        return FerryWorkerMeta(hellos, results, copied)

    def close(self) -> None:
        """Abort what runs and stop serving."""
        if self._puller is not None:
            self._puller.close()
        for client in (self._client, self._follow_client):
            if client is not None:
                client.close()
        if self._follower is not None:
            self._follower.close()
        if self._host is not None:
            self._host.close()
        for backend in self._backends:
            backend.close()

    def _ensure_puller(self, identity: SessionIdentity) -> Puller:
        if self._puller is None:
            key = load_key(self._options.key or None)
            me = PeerIdentity(
                node=identity.node,
                space=identity.space,
                incarnation=identity.incarnation,
                components=identity.components,
            )
            call_s = max(CALL_S, self._options.pin_timeout_ms / 1000)
            self._client, self._follow_client = PeerClient(key, me), PeerClient(key, me)
            self._follower = Follower(self._follow_client, silent_s=call_s)
            self._puller = self._make_puller(
                self._client,
                self._backends,
                pin_ms=self._options.pin_ms,
                call_timeout_s=call_s,
                block_bytes=self.hello.block_bytes if self.hello is not None else 1,
                follower=self._follower,
            )
        return self._puller

    def _ranked(self, result: PullResult) -> RankResult:
        return RankResult(
            transfer=result.transfer,
            request=result.request,
            rank=self._rank,
            ok=result.ok,
            count=result.count,
            stage=result.stage,
            reason=result.reason,
            detail=result.detail,
            fence=result.fence,
            backend=result.backend,
            bytes=result.bytes,
            verified_blocks=result.verified_blocks,
            host_blocks=result.host_blocks,
            pin_ms=result.pin_ms,
            read_ms=result.read_ms,
            settle_ms=result.settle_ms,
            total_ms=result.total_ms,
            chosen=result.chosen,
        )
