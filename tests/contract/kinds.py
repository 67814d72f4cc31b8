"""The backends that the contract suite runs against, and what it must know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.ports.backend import Backend
from kvferry_backends import registry


@dataclass(frozen=True)
class Kind:
    """One backend under the contract."""

    name: str
    options: dict[str, object] = field(default_factory=dict)
    through: Callable[[str], dict[str, object]] | None = None
    """Options that make peers come through a relay at ``ip:port``; None without such a thing."""

    def make(self, **options: object) -> Backend:
        return registry.create(self.name, {**self.options, **options})


KINDS = [
    Kind(name="tcp", through=lambda address: {"advertise": address}),
    Kind(name="tcp", options={"connections": 5, "chunk_blocks": 3}),
]
