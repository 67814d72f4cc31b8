"""A connector that does nothing: what vLLM itself spends on having one at all."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class Nothing(KVConnectorMetadata):  # type: ignore[misc]
    """No orders."""


class EmptyConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Every hook that a connector must have, and nothing in it."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 0, False

    def update_state_after_alloc(self, *args: Any) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> Nothing:
        return Nothing()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return False, None

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        return False, None
