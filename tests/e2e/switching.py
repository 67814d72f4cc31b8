"""Let one engine take turns with its connector, without one, and with an empty one.

Two processes that run the same code differ by several per cent for all their life; one process
does not differ from itself, so what a connector's hooks cost can be told far more finely. What
kvferry's own threads cost is then in every turn, and is no part of the difference.
"""

from __future__ import annotations

from typing import Any

from tests.bench.empty_connector import EmptyConnector
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole


class Switch:
    """For an engine of one worker that runs in this process. Use it between requests only."""

    def __init__(self, core: Any) -> None:
        self._scheduler = core.scheduler
        self._runner = core.model_executor.driver_worker.worker.model_runner
        own = self._scheduler.connector
        self._scheduler_sides = {
            "on": own,
            "off": None,
            "empty": self._empty(own, KVConnectorRole.SCHEDULER),
        }
        self._worker_sides = {
            "on": kv_transfer_state._KV_CONNECTOR_AGENT,
            "off": None,
            "empty": self._empty(own, KVConnectorRole.WORKER),
        }
        self._active = getattr(self._runner, "kv_connector", None)

    def _empty(self, own: Any, role: Any) -> EmptyConnector:
        return EmptyConnector(own._vllm_config, role, own._kv_cache_config)

    def to(self, arm: str) -> None:
        """``on``, ``off`` or ``empty``."""
        self._scheduler.connector = self._scheduler_sides[arm]
        worker = self._worker_sides[arm]
        kv_transfer_state._KV_CONNECTOR_AGENT = worker
        if self._active is None:  # The first generation of model runners asks the state above.
            return
        from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR

        self._runner.kv_connector = self._active if worker is not None else NO_OP_KV_CONNECTOR
        if worker is not None:
            self._active.kv_connector = worker
