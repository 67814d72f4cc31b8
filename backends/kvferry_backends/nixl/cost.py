"""What direct and packed reads cost between two processes, and which one to take. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["direct", "packed"]

LEARNING = 0.3
"""The share of a surprise that is believed at once."""
SURPRISE_MAX = 8.0
"""No single read counts as slower, or faster, than expected by more than this."""
WORTH_A_TRY = 4.0
"""A mode that was never tried is tried unless it is expected to be so many times slower."""
TRY_EVERY_READS = 32
"""So often the mode that seems slower is tried again, if it is not that much slower: it may have
been measured at a bad moment."""
SMALL_DESCRIPTORS = 32
"""Below this a read is direct: there is nothing to gain, and nothing to learn."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, by a straight line for each mode. Learned from every read."""

    descriptor_s: float
    """Direct: for each descriptor."""
    direct_byte_s: float
    """Direct: for each byte on the wire."""
    chunk_s: float
    """Packed: for each chunk."""
    packed_byte_s: float
    """Packed: for each byte, with all of packing, wire and unpacking that does not overlap."""
    direct_reads: int = 0
    packed_reads: int = 0

    def direct(self, descriptors: int, byte_count: int) -> float:
        """Seconds that a direct read is expected to take."""
        return descriptors * self.descriptor_s + byte_count * self.direct_byte_s

    def packed(self, chunks: int, byte_count: int) -> float:
        """Seconds that a packed read is expected to take."""
        return chunks * self.chunk_s + byte_count * self.packed_byte_s


FIRST_GUESS = {
    # Between two GPUs of one host: 9.5 GB/s for scattered blocks of 64 KiB, 340 GB/s for 32 MiB.
    "cuda": Costs(descriptor_s=6.7e-6, direct_byte_s=3e-12, chunk_s=3e-4, packed_byte_s=4e-12),
    # Between two processes of one host, where UCX copies with process_vm_readv.
    "host": Costs(descriptor_s=4e-6, direct_byte_s=1.3e-10, chunk_s=2e-4, packed_byte_s=3e-10),
}
"""By kind of memory, until the first reads have been measured."""


def choose(costs: Costs, *, descriptors: int, chunks: int, byte_count: int) -> Mode:
    """The mode that is expected to be faster, or that is worth a try."""
    if descriptors < SMALL_DESCRIPTORS:
        return "direct"
    direct, packed = costs.direct(descriptors, byte_count), costs.packed(chunks, byte_count)
    if not costs.direct_reads and direct < packed * WORTH_A_TRY:
        return "direct"
    if not costs.packed_reads and packed < direct * WORTH_A_TRY:
        return "packed"
    reads = costs.direct_reads + costs.packed_reads
    retry = reads % TRY_EVERY_READS == TRY_EVERY_READS - 1
    if retry and max(direct, packed) < min(direct, packed) * WORTH_A_TRY:
        return "packed" if direct <= packed else "direct"
    return "direct" if direct <= packed else "packed"


def learned(costs: Costs, mode: Mode, pieces: int, byte_count: int, took_s: float) -> Costs:
    """``costs`` after a read of ``pieces`` descriptors or chunks.

    What a read took more or less than expected is put down to its pieces and to its bytes as each
    was expected to count, so that many small reads teach the one and few large ones the other.
    """
    if mode == "direct":
        of_pieces, expected = pieces * costs.descriptor_s, costs.direct(pieces, byte_count)
    else:
        of_pieces, expected = pieces * costs.chunk_s, costs.packed(pieces, byte_count)
    surprise = min(max(took_s / expected, 1 / SURPRISE_MAX), SURPRISE_MAX)
    first = not (costs.direct_reads if mode == "direct" else costs.packed_reads)
    believed = 1.0 if first else LEARNING
    share = of_pieces / expected
    piece_factor = surprise ** (believed * share)
    byte_factor = surprise ** (believed * (1 - share))
    if mode == "direct":
        return msgspec.structs.replace(
            costs,
            descriptor_s=costs.descriptor_s * piece_factor,
            direct_byte_s=costs.direct_byte_s * byte_factor,
            direct_reads=costs.direct_reads + 1,
        )
    return msgspec.structs.replace(
        costs,
        chunk_s=costs.chunk_s * piece_factor,
        packed_byte_s=costs.packed_byte_s * byte_factor,
        packed_reads=costs.packed_reads + 1,
    )
