"""TileRT's real decode servers for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.e2e.plane import Plane
from tests.tilert.nodes import DecodeNode, StartNode, node_starter
from tests.tilert.original import OriginalSender
from tests.tilert.parts import WORDS, Parts
from tests.tilert.prefill import Prefill
from tests.tilert.return_bench import Bench, started
from tests.tilert.rig import BLOCKS, make_tokenizer
from tests.unit.tilert.caches import EngineCache

from kvferry_connectors.demo.tilert.package import missing
from kvferry_connectors.tilert.profiles import BF16, FP8_DS_MLA, find


@pytest.fixture(scope="session")
def tilert_package() -> None:
    """Skips without the package, except in CI, where it has to be there."""
    why = missing()
    if why and os.environ.get("CI"):
        pytest.fail(f"the contract tests of TileRT cannot run: {why}")
    if why:
        pytest.skip(why)


@pytest.fixture(scope="module")
def decode_node(
    tilert_package: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartNode]:
    """Starts decode servers that live until the end of the module.

    ``decode_node(model="dsv32", dtype="fp8_ds_mla", max_seq_len=1024, spy=None)``; see
    :class:`tests.tilert.nodes.NodeOptions`. ``wait=False`` returns before it answers.
    """
    made: list[DecodeNode] = []
    try:
        yield node_starter(tmp_path_factory.mktemp("tilert"), made)
    finally:
        for node in made:
            node.stop()


@pytest.fixture(scope="session")
def parts(tilert_package: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """A ledger with its coordinator, two nodes with spy engines, and TileRT's own sender."""
    folder = tmp_path_factory.mktemp("pool")
    made: list[DecodeNode] = []
    start = node_starter(folder, made)
    plane = Plane(folder)
    sender: OriginalSender | None = None
    senders = Prefill(EngineCache(find("dsv32"), FP8_DS_MLA, blocks=BLOCKS))
    try:
        for _ in range(2):
            start(wait=False, spy={"tokens": WORDS})
        plane.start_coordinator()
        sender = OriginalSender(folder / "sender.log")
        nodes = {f"t{i}": node.wait_ready() for i, node in enumerate(made)}
        yield Parts(plane, senders, sender, make_tokenizer(folder), nodes)
    finally:
        senders.sender.close()
        if sender is not None:
            sender.stop()
        for node in made:
            node.stop()
        plane.stop()


@pytest.fixture(scope="session")
def benches(
    tilert_package: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Bench]]:
    """Nodes that keep what they generate, on one ledger with its coordinator: by row format."""
    folder = tmp_path_factory.mktemp("keeping")
    nodes: list[DecodeNode] = []
    start = node_starter(folder, nodes)
    plane = Plane(folder)
    made: dict[str, Bench] = {}
    try:
        plane.start_coordinator()
        for form in (FP8_DS_MLA, BF16):
            made[form.name] = started(plane, start, form)
        for one in made.values():
            one.node.wait_ready()
        yield made
    finally:
        for one in made.values():
            one.close()
        for node in nodes:
            node.stop()
        plane.stop()


@pytest.fixture
def bench(benches: dict[str, Bench]) -> Bench:
    return benches["fp8_ds_mla"]
