"""Blocks over NCCL: both ends take part, packed, with a communicator of two ranks per direction.

The target asks over a control conversation; the source checks the grant, gathers the blocks chunk
by chunk into a ring and sends each chunk with ``ncclSend``; the target receives into its own ring
and scatters. The first transfer of a pair makes the communicator, which takes about a second and
device memory (NCCL's own and a ring on each side), so the number of communicators is bounded, and
the least recently used idle one makes room.

- :mod:`backend`: what the connectors see.
- :mod:`pair`, :mod:`source`: the two ends; :mod:`messages`: what they say to each other.
- :mod:`pump`: drives chunks, and the fence; :mod:`seats`: the bound.
- :mod:`pipe`: what is asked of a device; :mod:`cuda_device`, :mod:`library`: CUDA and nccl4py.

**Where it is second choice.** While one end waits for the other, NCCL's kernel spins on the GPU.
If the other end is frozen or dead, it does so until the transfer's deadline, or until the control
connection breaks; meanwhile a call that waits for the whole device (``cudaFree``, for example)
makes the engine wait too. A one-sided backend never does that.
"""
