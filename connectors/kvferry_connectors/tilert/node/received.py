"""A prompt's rows as they lie in TileRT's receive buffer: vLLM's own bytes, as the wire brought
them.

The wire carries a row in two planes; put together they are the row of vLLM's cache again, bit for
bit. The buffer is the request's own until TileRT's slot is released, and also before that TileRT
would admit somebody else's request to it (``docs/tilert-router.md``): so the slot's generation is
compared before anything that was read is used.
"""

from __future__ import annotations

from typing import Any

from kvferry_connectors.tilert.layout import Plane, Shape, Target
from kvferry_connectors.tilert.origin import INDEX, ROWS, Origin, OriginRefused
from kvferry_connectors.tilert.profiles import FORMATS, INDEX_PAGE_BYTES, PAGE_TOKENS, RowFormat

_COMPLETE = "complete"


class Received:
    """One prompt in the buffer of a TileRT ``ReceiveServer``."""

    def __init__(self, server: Any, origin: Origin) -> None:
        """
        Raises:
            OriginRefused: ``layout``, where the buffer is not one of the origin's profile, or
                ``overwritten``.
        """
        self.form = form_of(origin)
        profile, version = origin.profile, server.profile.layout_version
        if profile.layout_version(self.form) != version:
            raise OriginRefused(
                "layout",
                f"the buffer has layout version {version}, {profile.name} with {self.form.name} "
                f"has {profile.layout_version(self.form)}",
            )
        self._server = server
        self._slot = _slot_of(server)
        if self._slot[:2] != (origin.rid, _COMPLETE):
            raise OriginRefused("overwritten", f"the slot is {self._slot}")
        shape = Shape(
            profile=profile,
            form=self.form,
            tokens=origin.tokens,
            block_tokens=origin.block_tokens,
        )
        said = server.profile.hello_layout(server.base_ptr, server.max_seq_len)
        bases = {plane: _listed(said[f"{plane.value}_base"]) for plane in Plane}
        self._target = Target(shape, int(server.max_seq_len), bases, 0)
        several = isinstance(server.buffer, list | tuple)
        self._parts = list(server.buffer) if several else [server.buffer]
        self._starts = _listed(server.base_ptr)

    def intact(self) -> bool:
        """Whether everything read until now was this prompt's."""
        return _slot_of(self._server) == self._slot

    def rows(self, layer: int, first: int, last: int) -> Any:
        """Of the tokens ``first`` to ``last - 1``: (tokens, row bytes) uint8, on its device."""
        import torch

        kv = self._plane(layer, Plane.KV, self.form.kv_bytes, first, last)
        pe = self._plane(layer, Plane.PE, self.form.pe_bytes, first, last)
        return torch.cat((kv, pe), 1)

    def index_pages(self, layer: int, first: int, last: int) -> Any:
        """Indexer pages ``first`` to ``last - 1``: (pages, 8448) uint8, on the buffer's device."""
        return self._plane(layer, Plane.KI, INDEX_PAGE_BYTES, first, last)

    def _plane(self, layer: int, plane: Plane, width: int, first: int, last: int) -> Any:
        part = layer % self._target.parts
        start = self._target.address(layer, plane) - self._starts[part] + first * width
        held = self._parts[part][start : start + (last - first) * width]
        return held.view(last - first, width)


def form_of(origin: Origin) -> RowFormat:
    """How the origin's rows are stored.

    Raises:
        OriginRefused: ``layout``, where its pages are not made of such rows.
    """
    form = next((one for one in FORMATS.values() if one.name == origin.form), None)
    if form is None:
        raise OriginRefused("layout", f"rows of {origin.form!r} are unknown here")
    for page in origin.pages:
        wanted = origin.block_tokens * form.row_bytes if page.kind == ROWS else INDEX_PAGE_BYTES
        known = page.kind in (ROWS, INDEX) and 0 <= page.layer < origin.profile.layers
        odd = page.kind == INDEX and origin.block_tokens != PAGE_TOKENS
        if not known or odd or page.bytes != wanted:
            raise OriginRefused(
                "layout",
                f"{page.kind} of layer {page.layer} in {page.bytes} bytes are no block of "
                f"{origin.block_tokens} tokens, which has {wanted}",
            )
    return form


def _slot_of(server: Any) -> tuple[Any, Any, Any]:
    """Whose prompt the buffer holds. Senders that have yet to hang up change nothing."""
    found = server.state_snapshot()
    return found["rid"], found["state"], found["generation"]


def _listed(given: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in given) if isinstance(given, list | tuple) else (int(given),)
