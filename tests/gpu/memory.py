"""How much of a GPU's memory is in use, by all processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def used_bytes(gpu: int) -> int:
    """Bytes in use on the GPU with this index on the host."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()


def seconds_until(condition: Callable[[], bool], limit_s: float) -> float | None:
    """How long it took for the condition to hold; None if it did not within ``limit_s``."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if condition():
            return round(time.monotonic() - began_s, 3)
        time.sleep(0.02)
    return None
