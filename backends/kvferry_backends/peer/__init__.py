"""Same host, CUDA: the target's GPU reads the source's memory by itself, over NVLink or PCIe.

The target maps the source's allocations into its own CUDA context once (CUDA IPC) and gathers
scattered blocks of all layers with one kernel a transfer, on a stream of its own.

**Why nothing is read before it is written.** No event ties the two processes together; host order
does. A source exports a block only when the step that filled it has been processed, that is when
the host has seen tokens that were sampled, on the engine's own stream, after the step's last write
into the cache (``min(computed - in flight, tokens - 1)`` full blocks). The pin that names the block
is answered after that, and the kernel is launched after the answer. Tokens in flight lie in later
positions, thus never in an exported block. A drafter that shares the block pool may still write
its own layers of the last block: it can cost accepted drafts, never a wrong token.

**Why a block that the source reuses does no harm.** The source voids the pin when its scheduler
hands the block out, before any step can write it; the target asks ``done`` after its kernel has
ended. So bytes that were overwritten in mid-read are found out, and recomputed.

**Why no running forward pass still uses a target block.** The engine must not hand out a block
that a launched step may still read or write. vLLM does so where the top-level role is a consumer
(``kv_both``, which the connector demands): with steps in flight it returns freed blocks to the
pool only once the last step that used them has been processed. Hence the kernel waits for no event
of the engine's stream, which would delay a pull by up to a whole prefill step. The other way
round, the engine learns of a read's end from a host that has seen the kernel's event, and launches
the step that uses the blocks afterwards. After an abort the blocks stay with the request until the
kernel has ended.

**Memory that CUDA IPC cannot share** is found at registration and refused by name, so that the
next backend takes over: virtual memory management, that is vLLM's sleep mode and cumem allocator,
and PyTorch's expandable segments (with which vLLM refuses to start a connector). Should vLLM make
such memory its default, the way in is this: memory made by ``cuMemCreate`` can be exported only
with a handle type that was asked for at its creation, which vLLM's allocator does not do, so the
connector's ``get_mem_pool_context`` would give the cache a pool of its own, made with
``CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR``; the file descriptor travels by ``pidfd_getfd`` and is
mapped with ``cuMemImportFromShareableHandle``; and ``wake_up``, which puts other memory behind the
same addresses, begins a new instance of the backend, so that no target keeps the old mapping.
"""
