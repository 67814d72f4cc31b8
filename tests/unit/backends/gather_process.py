"""Runs the gather kernel in Triton's interpreter over host memory; one line of JSON a case.

A process of its own, because the interpreter is chosen when Triton is imported. There is no GPU:
this shows what the kernel copies, not how fast.
"""

from __future__ import annotations

import json
import os
import random
import sys

os.environ["TRITON_INTERPRET"] = "1"

import torch

from kvferry_backends.peer.gather import block_lists, launch, span_table
from kvferry_backends.peer.shapes import aligned, groups

BLOCKS = 64
CPU = torch.device("cpu")


class Side:
    """Random bytes in spans with gaps."""

    def __init__(self, widths: list[int], gap: int) -> None:
        self.widths = widths
        self.strides = [width + gap for width in widths]
        self.bases = [sum(self.strides[:i]) * BLOCKS for i in range(len(widths))]
        size = sum(self.strides) * BLOCKS
        self.memory = torch.randint(0, 255, (size,), dtype=torch.uint8)
        start = self.memory.data_ptr()
        self.spans = [
            (start + base, stride, width)
            for base, stride, width in zip(self.bases, self.strides, widths, strict=True)
        ]

    def piece(self, span: int, block: int) -> slice:
        start = self.bases[span] + block * self.strides[span]
        return slice(start, start + self.widths[span])


def case(widths: list[int], gap: int, count: int) -> dict[str, object]:
    source, target = Side(widths, gap), Side(widths, 2 * gap)
    sources = random.sample(range(BLOCKS), count)
    targets = random.sample(range(BLOCKS), count)
    expected = target.memory.clone()
    for span in range(len(widths)):
        for s, t in zip(sources, targets, strict=True):
            expected[target.piece(span, t)] = source.memory[source.piece(span, s)]
    changed = not torch.equal(expected, target.memory)
    wide = aligned([*source.spans, *target.spans], 8)
    source_ids, target_ids = block_lists(sources, targets, CPU)
    for group in groups(widths):
        launch(
            span_table([source.spans[i][:2] for i in group.spans], CPU),
            span_table([target.spans[i][:2] for i in group.spans], CPU),
            source_ids,
            target_ids,
            group.length,
            wide=wide,
        )
    equal = torch.equal(expected, target.memory)
    return {"wide": wide, "changed": changed, "equal": equal}


for given in json.loads(sys.argv[1]):
    print(json.dumps(case(*given)), flush=True)
