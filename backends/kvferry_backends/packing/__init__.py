"""Scattered blocks into one contiguous slot of staging memory, and back.

A data plane that pays for each piece of memory, or moves only contiguous ones, sends a transfer
as a few chunks. Each chunk is packed into a slot of a ring on the source, moved as one piece, and
unpacked from a slot of a ring on the target; with two slots or more the three steps overlap.

A packed chunk of n blocks is their bytes in stream order: span by span, and block by block within
a span, as everywhere in :mod:`kvferry_backends.layout`. It depends on nothing else, so that host
and device memory can be packed on one side and unpacked on the other.

- :mod:`chunks`: how a transfer is cut, and which slot each chunk takes. Pure.
- :mod:`packer`: what a :class:`~kvferry_backends.packing.packer.Packer` does, and
  ``make_packer(regions)``.
- :mod:`host`, :mod:`cuda`, :mod:`kernel`, :mod:`table`: packers of host and of CUDA memory.
- :mod:`ring`: the slots. :mod:`lanes`: where packing runs, and when it is done.

Use::

    packer = make_packer(regions)                    # once a pool
    ring = make_ring(regions.kind, regions.device, slots=4, slot_bytes=16 << 20)
    size = chunk_blocks(len(blocks), regions.block_bytes, ring.slot_bytes, ring.slots)
    listed = packer.listed(blocks)                   # once a transfer: ids to where they are used
    for chunk in chunks(len(blocks), size, ring.slots):
        packer.pack(listed, chunk.start, chunk.stop, ring.address(chunk.slot))

Host packers have done their work when a call returns. CUDA packers queue theirs on the calling
thread's current stream of their device: order it with events, and take ``engine_point`` for what
the engine has queued before.
"""
