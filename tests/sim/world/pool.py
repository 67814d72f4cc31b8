"""A block pool with the semantics that vLLM's has: free queue, prefix cache, soft leases."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

GROUP = b"\0\0\0\0"
"""vLLM's key of a cached block is its hash with the group's id behind it."""


class Block:
    """One block."""

    __slots__ = ("block_hash", "block_id", "is_null", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.is_null = False

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref {self.ref_cnt})"


class Pool:
    """Blocks by id; block 0 is the null block, as in vLLM.

    Freed blocks without a hash are handed out first, cached ones last and in the order in which
    they were freed. A block keeps its content until it is handed out again.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = [Block(i) for i in range(blocks)]
        self.blocks[0].is_null = True
        self._free: OrderedDict[int, Block] = OrderedDict((b.block_id, b) for b in self.blocks[1:])
        self._cached: dict[bytes, dict[int, Block]] = {}
        self._watchers: dict[int, Callable[[Block], None]] = {}

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_cached_block(self, block_hash: bytes, groups: Sequence[int]) -> list[Block] | None:
        found = self._cached.get(block_hash)
        return [next(iter(found.values()))] if found else None

    def get_new_blocks(self, count: int) -> list[Block]:
        if count > len(self._free):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        taken = [self._free.popitem(last=False)[1] for _ in range(count)]
        for block in taken:
            self._tell(block)
        for block in taken:
            self._forget_hash(block)
            assert block.ref_cnt == 0
            block.ref_cnt = 1
        return taken

    def cache(self, block: Block, block_hash: bytes) -> None:
        """A full block can be found under its hash from now on."""
        key = block_hash + GROUP
        if block.block_hash == key:
            return
        assert block.block_hash is None, f"{block} is cached under another hash"
        block.block_hash = key
        self._cached.setdefault(block_hash, {})[block.block_id] = block

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0:
                del self._free[block.block_id]
            block.ref_cnt += 1

    def unpin_blocks(self, blocks: Iterable[Block], on_reuse: Callable[[Block], None]) -> None:
        for block in blocks:
            assert block.ref_cnt > 0
            block.ref_cnt -= 1
            self._watchers[block.block_id] = on_reuse
            if block.ref_cnt == 0:
                self._free[block.block_id] = block

    def free_blocks(self, ordered: Iterable[Block]) -> None:
        first: list[Block] = []
        for block in ordered:
            assert block.ref_cnt > 0, f"{block} is freed although nobody holds it"
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.block_hash is None:
                first.append(block)
            else:
                self._free[block.block_id] = block
        for block in first:
            self._free[block.block_id] = block
            self._free.move_to_end(block.block_id, last=False)

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; refused while somebody holds one."""
        if len(self._free) != len(self.blocks) - 1:
            return False
        for block in self.blocks:
            self._tell(block)
            self._forget_hash(block)
        return True

    def _tell(self, block: Block) -> None:
        watcher = self._watchers.pop(block.block_id, None)
        if watcher is not None:
            watcher(block)

    def _forget_hash(self, block: Block) -> None:
        if block.block_hash is None:
            return
        known = self._cached[block.block_hash[: -len(GROUP)]]
        del known[block.block_id]
        if not known:
            del self._cached[block.block_hash[: -len(GROUP)]]
        block.block_hash = None
