"""What TileRT's decode server needs replaced to run without an accelerator and on loopback.

Only names inside the running process are replaced; no file of the package is touched, and its
protocol, its state machine, its layouts and its HTTP endpoints are its own:

- pinned memory becomes ordinary memory, and calls that need CUDA do nothing;
- the hard-wired address ``::`` becomes 127.0.0.1, and port 0 takes a free port, which is told.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import ModuleType
from typing import Any

HOST = "127.0.0.1"
ANYWHERE = "::"


def without_accelerator() -> None:
    """Make the calls that need CUDA harmless, and ``cuda`` tensors stay where they are."""
    import torch
    from tilert.pd_vllm import transport

    moved = torch.Tensor.to

    def to(tensor: Any, *args: Any, **options: Any) -> Any:
        if args and str(args[0]).startswith("cuda"):
            args = args[1:]
        return moved(tensor, *args, **options) if args or options else tensor

    def ordinary_memory(total: int) -> Any:
        return torch.zeros(total, dtype=torch.uint8)

    torch.Tensor.to = to
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device = lambda: 0
    transport.alloc_pinned_huge = ordinary_memory


def on_loopback(*modules: ModuleType, bound: Callable[[int], None]) -> None:
    """Let the sockets that ``modules`` open listen on loopback only; ``bound`` hears each port."""

    class LoopbackSocket(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **options: Any) -> None:
            wanted = socket.AF_INET if family == socket.AF_INET6 else family
            super().__init__(wanted, *args, **options)

        def bind(self, address: Any) -> None:
            if address[0] != ANYWHERE:
                raise AssertionError(f"the server binds {address}: the shim knows only {ANYWHERE}")
            super().bind((HOST, address[1]))
            bound(self.getsockname()[1])

    replaced = ModuleType("socket")
    replaced.__dict__.update(vars(socket))
    replaced.__dict__["socket"] = LoopbackSocket
    for module in modules:
        module.__dict__["socket"] = replaced
