"""A decode slot that a router has been lent."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.core.slots import SlotNode
from kvferry.core.slots_messages import Lent


class Slot:
    """One lease, from :meth:`kvferry.node.slots.Slots.acquire` to ``end``.

    Attributes:
        node: where to prefill to and decode.
        fence: grows with every lease; no two leases of a ledger share one.
        request: for whom it was asked.
        session: of the request; may be empty.
    """

    def __init__(
        self,
        node: SlotNode,
        fence: int,
        request: str,
        session: str,
        asked_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``asked_s``: when the acknowledged question was sent, on ``clock``."""
        self.node = node
        self.fence = fence
        self.request = request
        self.session = session
        self._clock = clock
        self._sure_until_s = asked_s + node.sure_s
        self._over = False

    @property
    def lent(self) -> Lent:
        """As the coordinator is told of it."""
        return Lent(self.node.name, self.fence)

    @property
    def send_within_s(self) -> float:
        """How long after it saw the request prefill may begin and go on writing to the node."""
        return self.node.send_within_s

    def sure(self) -> bool:
        """Whether nobody else can have the node now.

        Ask before the request goes to prefill, before ``/pd/decode``, and again when the first
        output is there: if it is False then, what the node answers may be another request's.
        """
        return not self._over and self._clock() < self._sure_until_s

    def acknowledged(self, asked_s: float) -> None:
        """The coordinator confirmed the lease to a question that was sent at ``asked_s``."""
        self._sure_until_s = max(self._sure_until_s, asked_s + self.node.sure_s)

    def over(self) -> None:
        """It ended, or is not ours any more."""
        self._over = True

    def __repr__(self) -> str:
        return f"Slot({self.node.name}, fence={self.fence}, request={self.request})"
