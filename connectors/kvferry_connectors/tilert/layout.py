"""Where each layer's rows lie: in a staging buffer of ours, and in a decode node's.

Pure arithmetic on bytes and addresses. A node's buffer has, in each of its parts, one plane after
the other; a plane has room for the node's longest sequence in every layer. Ours is as long as the
prompt is and keeps a layer's three planes together, so that it can go as soon as it is there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from kvferry.ports.remote_writer import Piece
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.profiles import INDEX_PAGE_BYTES, PAGE_TOKENS, Profile, RowFormat
from kvferry_connectors.tilert.wire import Hello

ADDRESS_MAX = 2**64


class Plane(enum.Enum):
    """One kind of data of a layer."""

    KV = "kv"
    PE = "pe"
    KI = "ki"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's KV: what its planes measure, in bytes of one layer."""

    profile: Profile
    form: RowFormat
    tokens: int
    block_tokens: int
    """Tokens of a block of the engine. With an indexer, blocks are pages."""

    @property
    def blocks(self) -> int:
        """Blocks of the engine that hold the prompt."""
        return -(-self.tokens // self.block_tokens)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Those that the wire carries."""
        return tuple(Plane) if self.profile.indexer else (Plane.KV, Plane.PE)

    def gathered(self, plane: Plane) -> int:
        """Bytes that are copied out of the cache: whole blocks."""
        if plane is Plane.KI:
            return self.blocks * INDEX_PAGE_BYTES
        return self.blocks * self.block_tokens * self._row(plane)

    def sent(self, plane: Plane) -> int:
        """Bytes that are written to the node: whole tokens, and whole pages of the indexer."""
        if plane is Plane.KI:
            return -(-self.tokens // PAGE_TOKENS) * INDEX_PAGE_BYTES
        return self.tokens * self._row(plane)

    def layer_bytes(self) -> int:
        """Bytes of a staged layer."""
        return sum(self.gathered(plane) for plane in self.planes)

    def _row(self, plane: Plane) -> int:
        return self.form.kv_bytes if plane is Plane.KV else self.form.pe_bytes


class Stage:
    """Where a send's layers lie in its staging buffer, from the buffer's start on."""

    def __init__(self, shape: Shape, layers: Iterable[int]) -> None:
        """``layers`` are those that this process sends."""
        self.shape = shape
        self.layers = tuple(layers)
        self._first = {layer: n * shape.layer_bytes() for n, layer in enumerate(self.layers)}

    @property
    def total_bytes(self) -> int:
        """How large the buffer has to be."""
        return len(self.layers) * self.shape.layer_bytes()

    def offset(self, layer: int, plane: Plane) -> int:
        """Where a layer's plane begins."""
        found = self._first[layer]
        for before in self.shape.planes:
            if before is plane:
                return found
            found += self.shape.gathered(before)
        raise KeyError(plane)


class Target(msgspec.Struct, frozen=True):
    """A decode node's receive buffer, as its hello describes it."""

    shape: Shape
    max_tokens: int
    bases: dict[Plane, tuple[int, ...]]
    """Address of each plane in each part of the buffer."""
    device: int
    """The device of the only part; of several, each is on the device of its own number."""

    @classmethod
    def of(cls, hello: Hello, shape: Shape) -> Target:
        """
        Raises:
            SendRefused: ``bad_frame``, where its numbers describe no buffer.
        """
        given = {Plane.KV: hello.kv_base, Plane.PE: hello.pe_base, Plane.KI: hello.ki_base}
        bases = {
            plane: tuple(base) if isinstance(base, list) else (base,)
            for plane, base in given.items()
        }
        parts = max(1, hello.nshards)
        for plane in shape.planes:
            held = bases[plane]
            if len(held) != parts or not all(0 < address < ADDRESS_MAX for address in held):
                raise SendRefused(
                    "bad_frame",
                    f"hello: {plane.value}_base={list(held)} is no address for each of {parts} "
                    "parts of a buffer",
                )
        return cls(shape, hello.max_seq_len, bases, hello.nixl_dev)

    @property
    def parts(self) -> int:
        """Parts of the buffer, each on a device of its own where there are several."""
        return len(self.bases[Plane.KV])

    def address(self, layer: int, plane: Plane) -> int:
        """Where a layer's plane begins in the node's memory."""
        if plane is Plane.KI:
            room = -(-self.max_tokens // PAGE_TOKENS) * INDEX_PAGE_BYTES
        elif plane is Plane.KV:
            room = self.max_tokens * self.shape.form.kv_bytes
        else:
            room = self.max_tokens * self.shape.form.pe_bytes
        return self.bases[plane][layer % self.parts] + (layer // self.parts) * room

    def device_of(self, layer: int) -> int:
        """The node's device that holds a layer.

        The hello names the device of one part only; a server with several has them on its devices
        in order.
        """
        return layer % self.parts if self.parts > 1 else self.device


def pieces(stage: Stage, base: int, target: Target, layers: Iterable[int]) -> list[Piece]:
    """What to write for ``layers`` of a stage whose buffer begins at address ``base``."""
    shape = stage.shape
    return [
        Piece(
            base + stage.offset(layer, plane),
            target.address(layer, plane),
            shape.sent(plane),
            target.device_of(layer),
        )
        for layer in layers
        for plane in shape.planes
    ]


def first_pieces(target: Target) -> list[Piece]:
    """One byte of each part of the buffer, by which its memory is recognised."""
    return [
        Piece(0, target.address(part, Plane.KV), 1, target.device_of(part))
        for part in range(target.parts)
    ]
