"""The host tier's memory, and how a chain's blocks are written into it: in vLLM's layout."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.ports.backend import Regions, Span
from kvferry_backends.host_tier.memory import make_pool
from kvferry_connectors.tilert.node.convert import index_keys, index_page, latent_rows
from kvferry_connectors.tilert.node.received import Received
from kvferry_connectors.tilert.origin import ROWS, Origin, Page
from kvferry_connectors.tilert.profiles import RowFormat

Go = Callable[[], None]
"""Called between two pages; raises where the work is not wanted any more."""
EngineRows = Sequence[tuple[Any, Any, Any]]
"""Of each layer indexer keys (or None), latent and rotary part, as the engine has them."""


class Memory:
    """Slots for blocks of one space, page by page as its nodes have them.

    Attributes:
        regions: the memory as data planes take it.
    """

    def __init__(self, pages: Sequence[Page], slots: int, *, pinned: bool) -> None:
        """
        Raises:
            kvferry.errors.BackendError: there is no memory for it.
        """
        like = Regions(
            tuple(Span(1, page.bytes, page.bytes) for page in pages),
            1,
            "cuda" if pinned else "host",
        )
        self.pages = tuple(pages)
        self.regions = make_pool(like, slots)
        self._slots = [_view(span, slots) for span in self.regions.spans]

    def put_received(
        self, received: Received, first: int, slots: Sequence[int], block_tokens: int, go: Go
    ) -> None:
        """Blocks ``first`` and on of a prompt, which are full, into ``slots``."""
        if not slots:
            return
        last = first + len(slots)
        for page, into in zip(self.pages, self._slots, strict=True):
            go()
            if page.kind == ROWS:
                rows = received.rows(page.layer, first * block_tokens, last * block_tokens)
                found = rows.view(len(slots), -1)
            else:
                found = received.index_pages(page.layer, first, last)
            into.index_copy_(0, _ids(slots), found.cpu())

    def put_generated(
        self, edge: Edge, rows: EngineRows, slots: Sequence[int], form: RowFormat, go: Go
    ) -> None:
        """What the engine generated behind a prompt, into ``slots``, which it fills.

        The first block may begin with rows of the prompt: those of ``edge``.
        """
        for nth, (page, into) in enumerate(zip(self.pages, self._slots, strict=True)):
            go()
            ki, kv, pe = rows[page.layer]
            if page.kind == ROWS:
                made = latent_rows(kv, pe, form).cpu()
                whole = made if edge.parts[nth] is None else _joined(edge.parts[nth], made)
                into.index_copy_(0, _ids(slots), whole.view(len(slots), -1))
                continue
            codes, scales = (part.cpu() for part in index_keys(ki))
            at, done = edge.tokens, 0
            for place, slot in enumerate(slots):
                if place == 0 and edge.parts[nth] is not None:
                    into[slot] = edge.parts[nth]
                count = min(edge.block_tokens - at, codes.shape[0] - done)
                index_page(into[slot], at, codes[done : done + count], scales[done : done + count])
                at, done = 0, done + count


class Edge:
    """The prompt's rows in its last block, which is not full: kept as they were received.

    Attributes:
        tokens: how many; 0 where the prompt ends with a block.
        parts: for each page of a block rows (tokens, row bytes) or a whole indexer page.
    """

    def __init__(self, block_tokens: int, tokens: int, parts: list[Any]) -> None:
        self.block_tokens = block_tokens
        self.tokens = tokens
        self.parts = parts

    @classmethod
    def of(cls, origin: Origin, received: Received, go: Go) -> Edge:
        """Copy it out of the buffer."""
        full, tokens = divmod(origin.tokens, origin.block_tokens)
        if not tokens:
            return cls.none(origin)
        parts = []
        for page in origin.pages:
            go()
            if page.kind == ROWS:
                first = full * origin.block_tokens
                found = received.rows(page.layer, first, origin.tokens)
            else:
                found = received.index_pages(page.layer, full, full + 1)[0]
            parts.append(found.to("cpu", copy=True))
        return cls(origin.block_tokens, tokens, parts)

    @classmethod
    def none(cls, origin: Origin) -> Edge:
        """What is generated begins with a block."""
        return cls(origin.block_tokens, 0, [None] * len(origin.pages))


def _joined(prompt: Any, generated: Any) -> Any:
    import torch

    return torch.cat((prompt, generated), 0)


def _ids(slots: Sequence[int]) -> Any:
    import torch

    return torch.tensor(slots, dtype=torch.int64)


def _view(span: Span, slots: int) -> Any:
    """A span's bytes as (slots, bytes of a page), without a copy."""
    import numpy as np
    import torch

    held = (ctypes.c_ubyte * (slots * span.length)).from_address(span.address)
    return torch.from_numpy(np.ctypeslib.as_array(held)).view(slots, span.length)
