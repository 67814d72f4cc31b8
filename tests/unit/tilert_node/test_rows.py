"""Rows of TileRT's own engine. It needs eight B200, so a stand-in has caches of the same shapes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvferry_connectors.tilert.node.rows import source_of


class Layer:
    """Stands in for TileRT's decode layer: indexer keys whole on device 0, the rest on the others.

    Its reset empties the caches, which the real one may do or not.
    """

    num_devices = 3

    def __init__(self, dtype: Any = torch.bfloat16) -> None:
        self.caches = []
        for device in range(self.num_devices):
            held = []
            for nth in range(2 * 3):
                whole = (nth % 3 == 0) == (device == 0)
                shape = (1, 40 if whole else 1, (128, 512, 64)[nth % 3])
                held.append(torch.full(shape, nth + 1.0).to(dtype))
            self.caches.append(held)

    def _get_device_result(self, device: int) -> tuple[Any, ...]:
        return None, self.caches[device], None, None

    def reset_sequence(self) -> str:
        for held in self.caches:
            for cache in held:
                cache.zero_()
        return "reset"


def engine(layer: Layer) -> Any:
    return SimpleNamespace(gen=SimpleNamespace(decode_layer=layer))


def test_each_cache_is_read_where_it_is_whole() -> None:
    source = source_of(engine(Layer()))
    assert source is not None
    rows = source.rows(10, 14)
    assert [[float(part[0, 0]) for part in layer] for layer in rows] == [[1, 2, 3], [4, 5, 6]]
    assert [tuple(part.shape) for part in rows[0]] == [(4, 128), (4, 512), (4, 64)]
    with pytest.raises(LookupError, match="41 positions"):
        source.rows(10, 41)


def test_another_dtype_is_refused_by_name() -> None:
    source = source_of(engine(Layer(torch.float32)))
    assert source is not None
    with pytest.raises(TypeError, match="float32"):
        source.rows(1, 2)


def test_rows_are_taken_before_the_reset() -> None:
    layer = Layer()
    source = source_of(engine(layer))
    assert source is not None
    seen: list[float] = []
    with source.before_reset(lambda: seen.append(float(source.rows(0, 1)[0][1][0, 0]))):
        assert layer.reset_sequence() == "reset"
    assert seen == [2.0]
    assert layer.reset_sequence() == "reset"  # Its own again.
    assert seen == [2.0]
    assert float(source.rows(0, 1)[0][1][0, 0]) == 0.0


def test_an_engine_without_rows_has_no_source() -> None:
    assert source_of(SimpleNamespace(decode=None)) is None
    given = source_of(SimpleNamespace(export_rows=lambda first, last: [first, last]))
    assert given is not None
    assert given.rows(1, 3) == [1, 3]
