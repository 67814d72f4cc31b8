"""What is held anywhere in a space, as a small set that may say yes too often and never no.

A request that shares nothing need not ask for a plan: its first sampled hash is in no other node's
offers. The coordinator sends its nodes this set, and what it lacks is not held.
"""

from __future__ import annotations

PROBES = 4
BITS_EACH = 16
"""Bits per hash that a new set is made for; a wrong yes then comes once in 400 questions."""
BITS_MIN = 1 << 13
BITS_MAX = 1 << 22
"""512 KiB, which fits one message: enough for 250,000 sampled hashes, or 32 million tokens. With
more the wrong answers grow, and each costs one plan that could have been spared."""


class HeldFilter:
    """A Bloom filter over sampled short hashes, which are uniform already.

    Args:
        bits: what :meth:`pack` gave.

    Raises:
        ValueError: not a power of two of bytes.
    """

    __slots__ = ("_bits", "_mask")

    def __init__(self, bits: bytes | bytearray) -> None:
        size = len(bits)
        if not size or size & (size - 1):
            raise ValueError(f"a filter of {size} bytes is not a power of two")
        self._bits = bytearray(bits)
        self._mask = 8 * size - 1

    @classmethod
    def for_count(cls, count: int) -> HeldFilter:
        """An empty one with room for ``count`` hashes."""
        bits = BITS_MIN
        while bits < min(BITS_EACH * count, BITS_MAX):
            bits *= 2
        return cls(bytearray(bits // 8))

    @property
    def room(self) -> int:
        """Hashes up to which it answers well; without bound once it cannot grow."""
        size = self._mask + 1
        return 1 << 62 if size >= BITS_MAX else 2 * size // BITS_EACH

    def add(self, short_hash: int) -> None:
        """Remember a hash of 64 bits."""
        bits, mask = self._bits, self._mask
        step = (short_hash >> 32) | 1
        at = short_hash
        for _ in range(PROBES):
            place = at & mask
            bits[place >> 3] |= 1 << (place & 7)
            at += step

    def might_hold(self, short_hash: int) -> bool:
        """False only for a hash that was never added."""
        bits, mask = self._bits, self._mask
        step = (short_hash >> 32) | 1
        at = short_hash
        for _ in range(PROBES):
            place = at & mask
            if not bits[place >> 3] & 1 << (place & 7):
                return False
            at += step
        return True

    def pack(self) -> bytes:
        """Its bits."""
        return bytes(self._bits)
