"""What the tests ask of an engine that prefills for TileRT; runs in the engine's process."""

from __future__ import annotations

from typing import Any


def _connector(child: Any) -> Any:
    connector = child.core.scheduler.connector
    for one in getattr(connector, "sub_connectors", [connector]):
        if type(one).__name__ == "KVFerryTileRTConnector":
            return one
    raise LookupError("this engine has no connector for TileRT")


def _worker(child: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group

    connector = get_kv_transfer_group()
    for one in getattr(connector, "sub_connectors", [connector]):
        if type(one).__name__ == "KVFerryTileRTConnector":
            return one._worker
    raise LookupError("this engine has no connector for TileRT")


def watch(child: Any) -> bool:
    """Keep the rows of every prompt that is ordered, as the cache has them after the step."""
    worker = _worker(child)
    child.tilert_rows = {}
    child.tilert_early = 0
    taken, over, computed = worker.take, worker.step_over, worker.computed
    orders: list[Any] = []

    def take(meta: Any) -> None:
        orders.extend(meta.orders)
        taken(meta)

    def noted(layer: str) -> None:
        child.tilert_early += bool(orders)
        computed(layer)

    def step_over() -> None:
        for order in orders:
            child.tilert_rows[order.rid] = _rows(child, order)
        orders.clear()
        over()

    worker.take, worker.step_over, worker.computed = take, step_over, noted
    return True


def _rows(child: Any, order: Any) -> list[bytes]:
    """Each layer's rows of the prompt, without our own code for it."""
    import torch

    runner = child.core.model_executor.driver_worker.worker.model_runner
    context = runner.vllm_config.compilation_config.static_forward_context
    found = []
    for name in sorted(name for name in context if hasattr(context[name], "kv_cache")):
        cache = context[name].kv_cache
        pages = [
            cache[block].contiguous().view(torch.uint8).flatten() for block in order.block_ids[0]
        ]
        found.append(bytes(torch.cat(pages).numpy())[: order.tokens * 1152])
    return found


def rows(child: Any, rid: str) -> list[bytes]:
    """What :func:`watch` kept."""
    kept: list[bytes] = child.tilert_rows[rid]
    return kept


def early(child: Any) -> int:
    """How many layers were told of while the step still went on."""
    return int(child.tilert_early)


def steps(child: Any, count: int) -> int:
    """Take so many steps of a held engine; returns the tokens computed of its one request."""
    for _ in range(count):
        for output in child._stepped():
            if output.finished:
                child._answered(output)
    requests = child.core.scheduler.requests.values()
    return max((int(request.num_computed_tokens) for request in requests), default=0)


def idle(child: Any) -> bool:
    """Whether nothing is held for any claimed request."""
    side, worker = _connector(child)._scheduler, _worker(child)
    side._take_back()
    staging = worker.sender.staging if worker.sender is not None else None
    held = staging.leases if staging is not None else 0
    return not (side._claims or side._open or side._sending or side._turns.held or held)


def allocated(child: Any) -> bool:
    """Whether there is staging memory."""
    sender = _worker(child).sender
    return sender is not None and sender.staging is not None and sender.staging.allocated
