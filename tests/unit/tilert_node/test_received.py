"""A prompt's rows in the receive buffer, of one part or of several, and whose they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.tilert_node.origins import make

from kvferry_connectors.tilert.node.received import Received
from kvferry_connectors.tilert.origin import OriginRefused, Page
from kvferry_connectors.tilert.profiles import BF16

ROOM = 128
PLANES = {"kv": ROOM * 1024, "pe": ROOM * 128, "ki": 2 * 8448}


class Server:
    """Stands in for TileRT's receive server: a buffer of ``parts``, whose bytes are known."""

    def __init__(self, parts: int = 1) -> None:
        layers = -(-2 // parts)
        size = layers * sum(PLANES.values())
        held = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(parts)]
        self.buffer: Any = held if parts > 1 else held[0]
        starts = [part.data_ptr() for part in held]
        self.base_ptr: Any = starts if parts > 1 else starts[0]
        self.max_seq_len = ROOM
        self.slot = {"state": "complete", "rid": "r1", "generation": 4, "active_writers": 0}
        version = 900 + BF16.version_offset

        def hello(base: Any, room: int) -> dict[str, Any]:
            kv = layers * PLANES["kv"]
            pe = kv + layers * PLANES["pe"]
            at = {"kv_base": 0, "pe_base": kv, "ki_base": pe}
            several = isinstance(base, list)
            return {k: [s + v for s in base] if several else base + v for k, v in at.items()}

        self.profile = SimpleNamespace(layout_version=version, hello_layout=hello)
        self.held = held
        self.layers = layers

    def state_snapshot(self) -> dict[str, Any]:
        return dict(self.slot)

    def plane(self, layer: int, name: str) -> Any:
        parts = len(self.held)
        start = 0
        for plane, size in PLANES.items():
            if plane == name:
                start += (layer // parts) * size
                return self.held[layer % parts][start : start + size]
            start += self.layers * size
        raise KeyError(name)


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_are_put_together_and_pages_stay(parts: int) -> None:
    server = Server(parts)
    received = Received(server, make())
    for layer in range(2):
        kv = server.plane(layer, "kv").view(ROOM, 1024)[3:70]
        pe = server.plane(layer, "pe").view(ROOM, 128)[3:70]
        assert torch.equal(received.rows(layer, 3, 70), torch.cat((kv, pe), 1))
        pages = server.plane(layer, "ki").view(2, 8448)
        assert torch.equal(received.index_pages(layer, 1, 2), pages[1:])
    server.slot["active_writers"] = 1  # One that has yet to hang up.
    assert received.intact()


def test_a_slot_that_was_given_on_is_noticed() -> None:
    server = Server()
    received = Received(server, make())
    server.slot["generation"] = 5
    assert not received.intact()
    server.slot["rid"] = "r2"
    with pytest.raises(OriginRefused, match="overwritten"):
        Received(server, make())


@pytest.mark.parametrize(
    "changes",
    [
        {"form": "fp8_ds_mla"},
        {"form": "int4"},
        {"pages": (Page("rows", 0, 5),)},
        {"pages": (Page("rows", 9, 64 * 1152),)},
        {"pages": (Page("state", 0, 8448),)},
    ],
)
def test_another_layout_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OriginRefused) as refused:
        Received(Server(), make(**changes))
    assert refused.value.reason == "layout"
