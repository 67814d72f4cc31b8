"""The residency of every space, kept beside the state that it is derived from."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.core.applied import Applied
from kvferry.core.state import SpaceState, State
from kvferry.ids import sample_stride
from kvferry.index.residency import Residency


class ResidencyIndex:
    """Follows what was applied to a state.

    It asks the state what became of each offer that an event touched instead of interpreting the
    event again, so the two cannot come to different views of revisions, epochs or incarnations.
    """

    def __init__(self) -> None:
        self._spaces: dict[str, Residency] = {}
        self.fresh: dict[str, list[bytes]] = {}
        """By space, the samples that nobody held before the last :meth:`follow`, joined."""

    @classmethod
    def from_state(cls, state: State) -> ResidencyIndex:
        """The index of a state, built afresh."""
        index = cls()
        for name, space in state.spaces.items():
            residency = index._spaces[name] = Residency()
            for offer_id, offer in space.offers.items():
                residency.put(offer_id, offer, _stride(space, offer.node))
        return index

    def space(self, name: str) -> Residency:
        """The residency of one space; an empty one, not kept, for an unknown name."""
        return self._spaces.get(name) or Residency()

    def follow(self, state: State, applied: Iterable[Applied]) -> None:
        """Take over what :func:`kvferry.core.apply.apply_batch` applied to ``state``."""
        self.fresh = {}
        for one in applied:
            if not one.offers:
                continue
            space = state.space(one.space)
            residency = self._spaces.get(one.space)
            if residency is None:
                residency = self._spaces[one.space] = Residency()
            for offer_id in one.offers:
                offer = space.offers.get(offer_id)
                if offer is None:
                    residency.drop(offer_id)
                elif new := residency.put(offer_id, offer, _stride(space, offer.node)):
                    self.fresh.setdefault(one.space, []).append(new)


def _stride(space: SpaceState, node: str) -> int:
    known = space.nodes.get(node)
    return sample_stride(known.block_size) if known is not None and known.block_size > 0 else 1
