"""What a router needs of decode slots; :class:`kvferry.node.slots.client.SlotClient` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvferry.core.slots import SlotNode
from kvferry.node.slots.slot import Slot


class Slots(Protocol):
    """Leases of TileRT decode nodes. Belongs to one event loop; no method waits for ever."""

    async def register(self, nodes: Sequence[SlotNode]) -> None:
        """Name the nodes that may be lent. They are named again whenever the ledger does not know
        them, so call this once.

        Raises:
            SlotsUnavailable: nobody heard it in ``ask_within_s``; it is said again by itself.
            SlotError: another router names the same node or address otherwise.
        """
        ...

    async def acquire(
        self,
        candidates: Sequence[str],
        request: str,
        session: str = "",
        *,
        waited_s: float = 0.0,
    ) -> Slot:
        """The first of these nodes that is free, for this request alone.

        Call it before anything of the request goes to prefill. From then on it is renewed by
        itself, until :meth:`end` or :meth:`abandon`.

        Args:
            candidates: names, the best first.
            request: as ``turn_ended`` will call it; unique among this process's requests.
            session: for the record.
            waited_s: for how long the request waits already, for the record.

        Raises:
            SlotsBusy: all are lent; ask again after ``retry_after_s``, or when :meth:`freed` says.
            SlotsUnavailable: nobody can lend one; decode elsewhere.
        """
        ...

    async def confirm(self, slot: Slot) -> None:
        """Decoding begins: call it right before ``/pd/decode``.

        Raises:
            SlotLost: it is not ours; send nothing to the node.
            SlotsUnavailable: nobody answered in ``ask_within_s``. The lease stands, and decoding
                may begin as long as :meth:`Slot.sure`.
        """
        ...

    async def end(self, slot: Slot, how: str, why: str = "") -> bool:
        """The lease ends, and the node may be lent to others.

        Args:
            how: ``replied`` (decode's reply came to its end after KV had arrived), ``cancelled``
                (the node confirmed ``/pd/cancel``), ``refused_before_admission`` (nothing was sent
                to the node, nor will be).
            why: more in plain words, for the record.

        Returns:
            whether it was acknowledged within ``end_within_s``. If not it is said again in the
            background, for ``end_keep_s``.
        """
        ...

    async def abandon(self, slot: Slot, why: str) -> bool:
        """Give a lease back whose request's fate is not known: the connection to the node broke,
        decode answered 504, prefill failed on its way. The node is lent again once it was idle for
        longer than TileRT waits. Returns as :meth:`end` does."""
        ...

    async def freed(self, timeout_s: float) -> bool:
        """Wait until some node becomes free; False if none did in time."""
        ...

    def available(self) -> bool:
        """Whether asking makes sense now: a connection and a leader that is heard."""
        ...

    async def close(self) -> None:
        """Say what is still to be said, in at most ``end_within_s``, and end."""
        ...
