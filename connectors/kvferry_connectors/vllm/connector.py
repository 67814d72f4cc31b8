"""The connector that vLLM loads: ``kv_connector_module_path`` names this module.

A façade: the scheduler's process gets a :class:`SchedulerSide`, each worker a
:class:`WorkerSide`, and every hook goes to the one that exists. vLLM imports this module in
every process, so nothing heavy is imported at module level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from kvferry.errors import ConfigError
from kvferry_connectors.vllm import compat, neighbours
from kvferry_connectors.vllm.enginelog import use_engine_log
from kvferry_connectors.vllm.metadata import FerryHandshake, FerryMetadata
from kvferry_connectors.vllm.options import parse

if TYPE_CHECKING:
    from kvferry_connectors.vllm.scheduler import SchedulerSide
    from kvferry_connectors.vllm.worker import WorkerSide


class KVFerryConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Moves KV between engines; does nothing for requests it cannot help."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        compat.check_version(getattr(vllm, "__version__", ""))
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        use_engine_log()
        transfer = vllm_config.kv_transfer_config
        if transfer.kv_role != "kv_both":
            raise ConfigError(
                f"kv_role={transfer.kv_role!r}: kvferry needs kv_both on every engine, for only "
                "then does vLLM defer the frees that its loads must not race"
            )
        self._multi = compat.under_multi_connector()
        self._early = not self._multi or compat.among_ours_alone()
        """Ranks introduce themselves before the first step."""
        options = parse(transfer.kv_connector_extra_config)
        if not self._multi:
            # Read by the scheduler after it built us; "fail" would turn a dead peer into an error.
            transfer.kv_load_failure_policy = "recompute"
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            from kvferry_connectors.vllm.scheduler import SchedulerSide

            self._scheduler = SchedulerSide(
                vllm_config, kv_cache_config, options, multi=self._multi
            )
            if not compat.one_full_attention_group(kv_cache_config):
                neighbours.offer(vllm_config, self._scheduler.outbox)
        else:
            from kvferry_connectors.vllm.worker import WorkerSide

            self._worker = WorkerSide(vllm_config, kv_cache_config, options)

    # --- both sides -------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Stop every thread and socket."""
        if self._scheduler is not None:
            neighbours.withdraw(self._scheduler.outbox)
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    # --- worker -----------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Serve reads of these tensors from now on."""
        assert self._worker is not None
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> FerryHandshake | None:
        """Our rank's hello; beside others' connectors it goes with the first step instead, because
        MultiConnector feeds the first child's answer to every child."""
        if self._worker is None or not self._early or self._worker.hello is None:
            return None
        return FerryHandshake(self._worker.hello)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Loads start here, before the forward pass, so that they overlap with it."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, FerryMetadata):
            self._worker.take(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: loads are asynchronous and started already."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: no layer waits for a load."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: peers read finished blocks where they lie."""

    def wait_for_save(self) -> None:
        """Nothing is saved."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Loads that ended, each exactly once."""
        assert self._worker is not None
        return None, self._worker.finished() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks of ended loads that hold no valid KV; the engine recomputes them."""
        assert self._worker is not None
        return self._worker.failed_blocks()

    def build_connector_worker_meta(self) -> Any:
        """Results for the scheduler side."""
        assert self._worker is not None
        return self._worker.worker_meta(hello=not self._early)

    # --- scheduler --------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a preempted request's output in flight need not be dropped."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """The block pool, for soft leases and leases."""
        if self._scheduler is not None:
            self._scheduler.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        """Ranks introduce themselves; another connector's metadata is none of our business."""
        assert self._scheduler is not None
        for value in metadata.values():
            if isinstance(value, FerryHandshake):
                self._scheduler.hello(value.hello)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """A load fills the one group there is, so its blocks need no zeroing."""
        return (0,)

    def on_new_request(self, request: Any) -> None:
        """Look for the request's prefix at once."""
        assert self._scheduler is not None
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens beyond the local ones that a pull brings."""
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> FerryMetadata:
        """Orders for the workers."""
        assert self._scheduler is not None
        return self._scheduler.build_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers report."""
        assert self._scheduler is not None
        self._scheduler.worker_output(connector_output.kv_connector_worker_meta)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Offer what the request leaves behind; its blocks are freed at once all the same."""
        assert self._scheduler is not None
        return self._scheduler.finished(request, block_ids)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same where the hybrid manager is off."""
        return self.request_finished_all_groups(request, (block_ids,))

    def has_pending_block_frees(self) -> bool:
        """Whether ending leases can spare a preemption."""
        assert self._scheduler is not None
        return self._scheduler.block_frees_pending()

    def reset_cache(self) -> bool | None:
        """The engine's prefix cache is being reset."""
        assert self._scheduler is not None
        return self._scheduler.reset_cache()
