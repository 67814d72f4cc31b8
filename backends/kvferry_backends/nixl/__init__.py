"""Blocks over NIXL: RDMA, NVLink, shared memory or TCP, whatever UCX finds between two processes.

The target reads from the source's memory. Each read is one conversation with the source
(:mod:`kvferry_backends.control`), which checks the grant, makes UCX go on meanwhile, and where
blocks are so scattered that their number is what costs, packs them into few large pieces
(:mod:`kvferry_backends.packing`).

- ``direct``: one descriptor for each piece of memory that is contiguous on both sides, out of
  lists that were prepared when the two met.
- ``packed``: the source gathers a chunk of blocks into a slot of its ring, the target reads the
  slot with one descriptor into a slot of its own and scatters it; several slots at a time.

Which one is taken follows from what both have cost between these two so far (:mod:`cost`).

**Fence.** NIXL cannot cancel: released or not, a read goes on, and writes when a frozen peer wakes.
Only the end of the agent that posted it is certain. So each peer is read by an agent of its own. A
direct read that is told to stop waits a short while for its end; else that agent is destroyed,
other reads from the same peer end as errors, and the next one makes a new agent. A packed read
writes into staging only: its blocks are safe at once, and its ring waits until nothing is late.

**TCP.** Between hosts without RDMA a read is refused, see ``allow_tcp``: backend ``tcp`` is there
for them. On one host UCX copies host memory with process_vm_readv where the kernel permits that,
and device memory over CUDA IPC.

**Permission.** The source refuses a read without a grant, and ends one whose grant holds no more.
But as with every RDMA its description has the keys of its memory: a process that knows it and does
not keep to the protocol can read blocks that nobody granted. Only nodes of the space ever see it,
and who reads what it was not granted learns that from ``done``.

Options: see :class:`kvferry_backends.nixl.options.NixlOptions`.
"""
