"""The worker's side where nothing can be sent; sends themselves are in ``tests/tilert``."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest
from tests.unit.tilert.caches import EngineCache

from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.fitting import Fit, fit
from kvferry_connectors.tilert.metadata import SendOrder, TileRTMetadata
from kvferry_connectors.tilert.options import parse
from kvferry_connectors.tilert.outcomes import RankOutcome
from kvferry_connectors.tilert.profiles import BF16, Profile
from kvferry_connectors.tilert.reports import Inbox
from kvferry_connectors.tilert.worker import WorkerSide

WAIT_S = 30.0
PROFILE = Profile(name="small", layers=2, version=900)
NAME = "model.layers.0.self_attn.attn"


class Told:
    """What a worker's side tells."""

    def __init__(self) -> None:
        self.heard: queue.Queue[RankOutcome] = queue.Queue()
        self.inbox = Inbox(self.heard.put)

    def next(self) -> RankOutcome:
        return self.heard.get(timeout=WAIT_S)

    def order(self, port: int = 1) -> TileRTMetadata:
        order = SendOrder(
            request="r1",
            rid="r1",
            host="127.0.0.1",
            port=port,
            tokens=100,
            last_prompt_token=3,
            block_ids=((1, 2),),
        )
        return TileRTMetadata(report_to=self.inbox.path, orders=[order])


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.inbox.close()


def side(fitted: Fit | SendRefused, *, rank: int = 0, ranks: int = 1) -> WorkerSide:
    options, _ = parse({"profile": {"name": "small", "layers": 2, "version": 900}, "senders": 2})
    return WorkerSide(options, fitted, blocks=8, rank=rank, ranks=ranks)


def step(worker: WorkerSide, meta: TileRTMetadata) -> None:
    worker.take(meta)
    worker.computed(NAME)
    worker.step_over()


def test_a_model_that_does_not_fit_is_refused_by_name(told: Told) -> None:
    worker = side(SendRefused("model_unfit", "it is a Llama"))
    worker.register({"layers.0": object()})
    step(worker, told.order())
    outcome = told.next()
    assert (outcome.state, outcome.reason) == ("refused", "model_unfit")
    assert outcome.detail == "it is a Llama"
    worker.close()


def test_a_cache_that_is_laid_out_otherwise_is_refused_when_somebody_asks(told: Told) -> None:
    cache = EngineCache(PROFILE, BF16)
    cache.tensors[NAME] = cache.tensors[NAME].transpose(1, 2)
    worker = side(fit(PROFILE, cache.config))
    worker.register(cache.tensors)
    assert worker.sender is None
    step(worker, told.order())
    assert "VLLM_KV_CACHE_LAYOUT" in told.next().detail
    worker.close()


def test_a_rank_beyond_the_nodes_senders_sends_and_tells_nothing(told: Told) -> None:
    cache = EngineCache(PROFILE, BF16)
    idle = side(fit(PROFILE, cache.config), rank=2, ranks=4)
    idle.register(cache.tensors)
    step(idle, told.order())
    idle.close()
    assert told.heard.empty()
    assert idle.sender is not None
    assert idle.sender.staging is not None
    assert idle.sender.staging.allocated is False


def test_a_node_that_is_not_there_is_told_and_leaves_nothing_behind(told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    cache = EngineCache(PROFILE, BF16)
    worker = side(fit(PROFILE, cache.config))
    worker.register(cache.tensors)
    step(worker, TileRTMetadata())
    assert worker.sender is not None
    pool = worker.sender.staging
    assert pool is not None
    assert pool.allocated is False  # Nothing was claimed yet.
    step(worker, told.order(port))
    outcome = told.next()
    assert (outcome.state, outcome.reason) == ("refused", "unreachable")
    worker.close()
    assert (pool.leases, worker.sender.under_way) == (0, 0)
