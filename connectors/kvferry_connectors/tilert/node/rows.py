"""Where the generated rows are taken from: an engine that gives them, or TileRT's own.

``rows(first, last)`` gives, for each layer in order, indexer keys, latent and rotary part of the
tokens ``first`` to ``last - 1`` in bfloat16, counted from the prompt's first token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kvferry_connectors.tilert.node.memory import EngineRows

Rows = Callable[[int, int], EngineRows]


class RowSource(Protocol):
    """An engine's rows."""

    def rows(self, first: int, last: int) -> EngineRows:
        """See the module."""
        ...

    @contextmanager
    def before_reset(self, take: Callable[[], None]) -> Iterator[None]:
        """While the engine decodes inside the block, ``take`` is called before its rows may go.

        Where they stay until the next inject it is not called.
        """
        ...


def source_of(engine: Any) -> RowSource | None:
    """Where this engine's rows come from; None where it gives none."""
    if callable(getattr(engine, "export_rows", None)):
        return _Giving(engine)
    layer = getattr(getattr(engine, "gen", None), "decode_layer", None)
    if callable(getattr(layer, "_get_device_result", None)):
        return _Caches(layer)
    return None


class _Giving:
    """An engine with a method ``export_rows(first, last)``."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def rows(self, first: int, last: int) -> EngineRows:
        found: EngineRows = self._engine.export_rows(first, last)
        return found

    @contextmanager
    def before_reset(self, take: Callable[[], None]) -> Iterator[None]:
        yield


class _Caches:
    """TileRT's engines for NVIDIA: each device has three caches a layer, (1, positions, width).

    A layer's full-length caches are on some devices; the others have them with one position only.
    Whether the reset at a generation's end empties them is not known: rows are taken before it.
    Read from the published package and never run: that takes eight B200.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def rows(self, first: int, last: int) -> EngineRows:
        caches = [self._layer._get_device_result(n)[1] for n in range(self._layer.num_devices)]
        layers = len(caches[0]) // 3
        return [
            (
                self._part(caches, 3 * number, first, last),
                self._part(caches, 3 * number + 1, first, last),
                self._part(caches, 3 * number + 2, first, last),
            )
            for number in range(layers)
        ]

    @contextmanager
    def before_reset(self, take: Callable[[], None]) -> Iterator[None]:
        reset = self._layer.reset_sequence

        def first_take(*args: Any, **options: Any) -> Any:
            take()
            return reset(*args, **options)

        self._layer.reset_sequence = first_take
        try:
            yield
        finally:
            del self._layer.reset_sequence

    def _part(self, caches: list[Any], nth: int, first: int, last: int) -> Any:
        import torch

        for held in caches:
            cache = held[nth]
            if cache.shape[1] >= last:
                if cache.dtype is not torch.bfloat16:
                    raise TypeError(f"the engine's cache {nth} is {cache.dtype}, not bfloat16")
                return cache[0, first:last]
        raise LookupError(f"no device holds {last} positions of the engine's cache {nth}")
