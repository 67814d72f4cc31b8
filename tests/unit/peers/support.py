"""Parts that several tests of the peer protocol share."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kvferry.core.events import PinEnded
from kvferry.node.export.table import ExportTable, RankEndpoint
from kvferry.node.peers.server import PeerServer
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.peers.wire import Done, Granted, Pin, Refused

KEY = bytes(range(32))
SPACE = "qwen-0123456789ab"
SOURCE_LIFE = "aaaaaaaaaaaaaaaa"
TARGET_LIFE = "bbbbbbbbbbbbbbbb"
BOUND_S = 20.0
"""How long a test waits for what must happen soon."""


def chain(name: str, count: int) -> tuple[bytes, ...]:
    """``count`` distinct 32-byte hashes."""
    return tuple(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(count))


def identity(node: str, life: str, space: str = SPACE, **components: str) -> PeerIdentity:
    return PeerIdentity(node, space, life, components or {"block_size": "16"})


def pin(transfer: str, hashes: Iterable[bytes], **fields: int) -> Pin:
    return Pin(transfer=transfer, incarnation=SOURCE_LIFE, hashes=tuple(hashes), **fields)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within a generous bound."""
    deadline_s = time.monotonic() + BOUND_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        pause.wait(0.005)
    return True


def freeze(process: subprocess.Popen[str]) -> None:
    """Stop a child process; returns when every one of its threads stands still."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def thaw(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Source:
    """An export table with its ended pins, ready to grant."""

    def __init__(self, *, ranks: int = 1, clock: Callable[[], float] | None = None) -> None:
        self.ended: list[PinEnded] = []
        self.table = ExportTable(
            SOURCE_LIFE,
            on_pin_ended=self.ended.append,
            clock=clock or time.monotonic,
            pins_max=16,
            pin_ms_max=60_000,
        )
        self.keys = [bytes([rank]) * 32 for rank in range(ranks)]
        self.table.set_ranks(
            [
                RankEndpoint(key, {"fake": f"rank{rank}".encode()})
                for rank, key in enumerate(self.keys)
            ]
        )

    def offer(self, name: str, count: int, first_block: int = 0) -> tuple[bytes, ...]:
        hashes = chain(name, count)
        self.table.offer(hashes, range(first_block, first_block + count))
        return hashes

    def grant(self, transfer: str, hashes: Iterable[bytes], **fields: int) -> Granted:
        answer = self.table.pin("p0", pin(transfer, hashes, **fields))
        assert isinstance(answer, Granted), answer
        return answer

    def how(self) -> list[tuple[str, str]]:
        return [(event.transfer, event.how) for event in self.ended]

    def intact(self, transfer: str, rank: int = 0) -> bool:
        """What ``done`` of this rank is told."""
        return self.table.done("p0", Done(transfer=transfer, rank=rank)).intact

    def reason(self, transfer: str, hashes: Iterable[bytes], **fields: int) -> str:
        """Why the pin is refused, or ``granted``."""
        answer = self.table.pin("p0", pin(transfer, hashes, **fields))
        return answer.reason if isinstance(answer, Refused) else "granted"


def serve(source: Source, *, port: int = 0, life: str = SOURCE_LIFE, **fields: Any) -> PeerServer:
    """A started peer server for the source."""
    me = identity("d0", life)
    server = PeerServer(KEY, me, source.table, "127.0.0.1", port, **fields)
    server.start()
    return server
