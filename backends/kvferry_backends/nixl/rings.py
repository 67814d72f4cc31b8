"""Staging rings: taken for one packed read at a time, by givers and takers alike."""

from __future__ import annotations

import threading

from kvferry_backends.packing.ring import Ring, make_ring


class Rings:
    """``count`` rings of one allocation, so that agents register them as one area. Thread-safe."""

    def __init__(self, kind: str, device: int, *, count: int, slots: int, slot_bytes: int) -> None:
        """
        Raises:
            BackendError: there is no memory for them.
        """
        self._memory = make_ring(kind, device, slots=count * slots, slot_bytes=slot_bytes)
        self.slot_bytes = self._memory.slot_bytes
        self.slots = slots
        self._lock = threading.Lock()
        self._free = list(range(count))

    @property
    def area(self) -> tuple[int, int]:
        """Address and length of all of them."""
        return self._memory.base, self._memory.bytes

    def take(self) -> RingLoan | None:
        """A ring for one read, or None where all are in use."""
        with self._lock:
            return RingLoan(self, self._memory, self._free.pop()) if self._free else None

    def give_back(self, number: int) -> None:
        with self._lock:
            self._free.append(number)


class RingLoan:
    """One ring, in use."""

    def __init__(self, rings: Rings, memory: Ring, number: int) -> None:
        self._rings: Rings | None = rings
        self._memory = memory
        self._number = number
        self.slots = rings.slots
        self.slot_bytes = memory.slot_bytes
        self.base = memory.address(number * rings.slots)

    def address(self, slot: int) -> int:
        """Where this slot begins."""
        return self.base + slot * self.slot_bytes

    def handed_over(self) -> RingLoan:
        """The same loan for somebody else, who has to give it back; this one is over."""
        rings, self._rings = self._rings, None
        assert rings is not None
        return RingLoan(rings, self._memory, self._number)

    def give_back(self) -> None:
        """Nothing touches its slots any more. May be called twice."""
        rings, self._rings = self._rings, None
        if rings is not None:
            rings.give_back(self._number)
