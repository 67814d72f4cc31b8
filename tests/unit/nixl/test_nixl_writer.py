"""Writing into a process that knows nothing of kvferry, as a TileRT decode server does."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.unit.nixl.conftest import NIXL

from kvferry.errors import BackendError, ConfigError
from kvferry.ports.remote_writer import Area, Piece, RemoteTarget, RemoteWriter
from kvferry_backends.registry import create_writer

SIZE = 4 << 20
LARGE = 64 << 20
"""More than the kernel takes of a write to a frozen process."""
WAIT_S = 60.0
OPTIONS: dict[str, object] = {"devices": ["lo"], "environment": {"UCX_TLS": "tcp"}}


class Foreign:
    """A :mod:`tests.unit.nixl.foreign_child`."""

    def __init__(self, parts: int = 1, size: int = SIZE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.nixl.foreign_child", str(parts), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp"},
            text=True,
        )
        said = json.loads(self._line())
        self.metadata = base64.b64decode(said["meta"])
        self.bases: list[int] = said["bases"]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def digest(self) -> str:
        return self._ask()[0]

    def nines(self) -> int:
        """How many of its bytes are 9."""
        return int(self._ask()[1])

    def _ask(self) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line().split()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@pytest.fixture
def writer() -> Iterator[RemoteWriter]:
    if NIXL.why_not:
        pytest.skip(NIXL.why_not)
    made = create_writer("nixl", OPTIONS)
    yield made
    made.close()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    if NIXL.why_not:
        pytest.skip(NIXL.why_not)
    made = Foreign()
    yield made
    made.close()


@pytest.fixture
def large() -> Iterator[Foreign]:
    if NIXL.why_not:
        pytest.skip(NIXL.why_not)
    made = Foreign(size=LARGE)
    yield made
    made.close()


def memory(seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def area(held: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Area:
    return Area(held.ctypes.data, held.nbytes)


def whole(*held: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in held)).hexdigest()


def finish(target: RemoteTarget, pieces: list[Piece]) -> None:
    writing = target.write(pieces)
    deadline = time.monotonic() + WAIT_S
    while not writing.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_is_written_is_there(writer: RemoteWriter, foreign: Foreign) -> None:
    ours, (base,) = memory(1), foreign.bases
    target = writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])
    start = ours.ctypes.data
    # Rows of different lengths, crossed over.
    half = SIZE // 2
    pieces = [Piece(start, base + half, half), Piece(start + half, base, half - 8)]
    finish(target, pieces)
    expected = np.concatenate((ours[half : SIZE - 8], np.zeros(8, np.uint8), ours[:half]))
    assert foreign.digest() == whole(expected)
    assert foreign.digest() != whole(ours)


def test_each_part_of_a_buffer_is_reached_on_its_own_device(writer: RemoteWriter) -> None:
    foreign = Foreign(parts=3)
    try:
        ours = memory(2)
        probe = [Piece(0, base, 1, device) for device, base in enumerate(foreign.bases)]
        target = writer.connect(foreign.metadata, area(ours), probe)
        start = ours.ctypes.data
        finish(target, [Piece(start, base, SIZE, n) for n, base in enumerate(foreign.bases)])
        assert foreign.digest() == whole(ours, ours, ours)
        # What TileRT's own sender does: all parts on the device that the hello names.
        with pytest.raises(BackendError):
            finish(target, [Piece(start, base, SIZE, 2) for base in foreign.bases])
    finally:
        foreign.close()


def test_memory_that_the_target_does_not_offer_is_refused(
    writer: RemoteWriter, foreign: Foreign
) -> None:
    ours, (base,) = memory(3), foreign.bases
    with pytest.raises(BackendError, match="does not register"):
        writer.connect(foreign.metadata, area(ours), [Piece(0, base + SIZE, 1)])
    target = writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])
    with pytest.raises(BackendError, match="not within the area"):
        target.write([Piece(ours.ctypes.data + 1, base, SIZE)])
    with pytest.raises(BackendError):
        finish(target, [Piece(ours.ctypes.data, base + 8, SIZE)])


def test_a_description_that_is_none_is_refused(writer: RemoteWriter) -> None:
    with pytest.raises(BackendError, match="meeting"):
        writer.connect(b"no such thing", area(memory(4)), [Piece(0, 4096, 1)])


@pytest.mark.parametrize("fenced", [True, False])
def test_after_the_fence_nothing_is_read_from_our_memory(
    writer: RemoteWriter, large: Foreign, fenced: bool
) -> None:
    ours, foreign, (base,) = np.full(LARGE, 3, dtype=np.uint8), large, large.bases
    target = writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])
    start = ours.ctypes.data
    finish(target, [Piece(start, base, LARGE)])
    foreign.freeze()
    writing = target.write([Piece(start, base, LARGE)])
    for _ in range(100):
        assert not writing.done()  # The target has to take the bytes.
    if fenced:
        target.fence()
        target.fence()
    ours[:] = 9
    foreign.thaw()
    if fenced:
        with pytest.raises(BackendError):
            writing.done()
        with pytest.raises(BackendError):
            target.write([Piece(start, base, LARGE)])
        assert foreign.nines() == 0
    else:
        deadline = time.monotonic() + WAIT_S
        while not writing.done():
            assert time.monotonic() < deadline
        assert foreign.nines() > 0  # What reuse of the memory does to a write under way.


def test_a_target_that_died_fails_a_write_or_is_fenced(
    writer: RemoteWriter, foreign: Foreign
) -> None:
    ours, (base,) = memory(6), foreign.bases
    target = writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])
    finish(target, [Piece(ours.ctypes.data, base, SIZE)])
    foreign.kill()
    with pytest.raises(BackendError):
        finish(target, [Piece(ours.ctypes.data, base, SIZE)])
    target.fence()


def test_a_closed_writer_has_fenced_its_targets(writer: RemoteWriter, foreign: Foreign) -> None:
    ours, (base,) = memory(7), foreign.bases
    target = writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])
    writer.close()
    with pytest.raises(BackendError):
        target.write([Piece(ours.ctypes.data, base, SIZE)])
    with pytest.raises(BackendError, match="closed"):
        writer.connect(foreign.metadata, area(ours), [Piece(0, base, 1)])


def test_wrong_names_and_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no writer is called 'mooncake'; installed are: .*nixl"):
        create_writer("mooncake")
    with pytest.raises(ConfigError, match="slots"):
        create_writer("nixl", {"slots": 2})
