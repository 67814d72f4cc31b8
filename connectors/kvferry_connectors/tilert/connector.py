"""The connector that vLLM loads on a prefill engine: ``kv_connector_module_path`` names it.

A façade like :mod:`kvferry_connectors.vllm.connector`: alone, or under ``MultiConnector`` beside
``KVFerryConnector`` and others. It only sends, never loads, never delays a free, and leaves alone
what is not marked.
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
from kvferry_connectors.tilert.fitting import judge
from kvferry_connectors.tilert.metadata import TileRTMetadata
from kvferry_connectors.tilert.options import parse
from kvferry_connectors.tilert.origins import open_origins
from kvferry_connectors.vllm import compat
from kvferry_connectors.vllm.enginelog import use_engine_log

if TYPE_CHECKING:
    from kvferry_connectors.tilert.scheduler import SchedulerSide
    from kvferry_connectors.tilert.worker import WorkerSide


class KVFerryTileRTConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Sends marked requests' KV to TileRT decode nodes."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        compat.check_version(getattr(vllm, "__version__", ""))
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        use_engine_log()
        transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
        if transfer.kv_role not in ("kv_producer", "kv_both"):
            raise ConfigError(
                f"kv_role={transfer.kv_role!r}: prefill for TileRT is a producer; set kv_producer, "
                "or kv_both beside KVFerryConnector"
            )
        options, profile = parse(transfer.kv_connector_extra_config)
        self._options = options
        self._config = vllm_config
        ranks = int(parallel.tensor_parallel_size)
        fitted = judge(profile, parallel, kv_cache_config)
        self._fitted = fitted
        self._cache_config = kv_cache_config
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            from kvferry_connectors.tilert.scheduler import SchedulerSide

            self._scheduler = SchedulerSide(options, fitted, ranks=ranks)
        else:
            from kvferry_connectors.tilert.worker import WorkerSide

            rank = int(parallel.rank) % ranks
            blocks = int(kv_cache_config.num_blocks)
            self._worker = WorkerSide(options, fitted, blocks=blocks, rank=rank, ranks=ranks)

    def shutdown(self) -> None:
        """Stop every thread and socket."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    # --- worker -----------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The tensors that rows are copied from."""
        assert self._worker is not None
        self._worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Nodes are asked for admission while the step computes."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, TileRTMetadata):
            self._worker.take(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing is loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """A layer is written: it can go. Where graphs skip this hook, all go at the step's end."""
        assert self._worker is not None
        self._worker.computed(layer_name)

    def wait_for_save(self) -> None:
        """The step is over; it queues what is left to copy and waits for nothing."""
        assert self._worker is not None
        self._worker.step_over()

    # --- scheduler --------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """False: rows are copied in the step that completes them, so that a request which is
        preempted after it may finish."""
        return False

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Where a request's blocks are asked for."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            from kvferry_connectors.tilert.recording import open_recording

            self._scheduler.bind(kv_cache_manager)
            # Every connector of this engine exists by now.
            self._scheduler.recording = open_recording(self._options, self._config)
            self._scheduler.origins = open_origins(self._fitted, self._cache_config, self._config)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        """Nothing: it is another connector's."""

    def on_new_request(self, request: Any) -> None:
        """Claim it if it is marked."""
        assert self._scheduler is not None
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """No tokens; a claimed request comes again while there is no staging memory for it."""
        assert self._scheduler is not None
        return (0, False) if self._scheduler.may_start(request) else (None, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing: blocks are asked for when the prompt is complete."""

    def build_connector_meta(self, scheduler_output: Any) -> TileRTMetadata:
        """Orders for the workers."""
        assert self._scheduler is not None
        return self._scheduler.build_meta(scheduler_output)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks are free at once; its reply says what became of the send so far."""
        assert self._scheduler is not None
        return False, self._scheduler.finished(request)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same where the hybrid manager is off."""
        return self.request_finished_all_groups(request, (block_ids,))
