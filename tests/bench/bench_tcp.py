"""Block reads over the tcp backend against one raw contiguous socket stream, in one run.

Source and sender live in a process of their own. Each round measures, in turn, the raw stream
and the reads, so that a busy machine slows both; then the latency of reads of one block. Prints
JSON; ratios are what to compare.

    python -m tests.bench.bench_tcp --mib 64 --rounds 9
    python -m tests.bench.bench_tcp --block-kib 128 --spans 32 --verify full
    python -m tests.bench.bench_tcp --tls
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import random
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, c_char
from multiprocessing.connection import Connection
from pathlib import Path

from kvferry.ports.backend import Backend, ReadRequest, Regions, Span, Verify
from kvferry_backends import registry

MIB = 1024 * 1024
WAIT_S = 60.0
SMALL_READS = 300
CERTIFICATES = Path(__file__).parents[1] / "unit" / "backends" / "certificates"


def options(args: argparse.Namespace) -> dict[str, object]:
    """Of both backends."""
    chosen: dict[str, object] = {"connections": args.connections}
    if args.tls:
        chosen |= {
            "tls_cert_file": str(CERTIFICATES / "node.pem"),
            "tls_key_file": str(CERTIFICATES / "node.key"),
            "tls_ca_file": str(CERTIFICATES / "ca.pem"),
        }
    return chosen


def regions(block_bytes: int, blocks: int, spans: int) -> tuple[mmap.mmap, Regions]:
    """A pool of touched pages; ``spans`` layers share a block's bytes."""
    memory = mmap.mmap(-1, block_bytes * blocks)
    address = addressof(c_char.from_buffer(memory))
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = at >> 12 & 0xFF
    length = block_bytes // spans
    parts = tuple(Span(address + n * length * blocks, length, length) for n in range(spans))
    return memory, Regions(spans=parts, blocks=blocks, owner=memory)


def source_process(pipe: Connection, args: argparse.Namespace) -> None:
    """Serves blocks, and sends a raw stream of ``mib`` to whoever connects and asks."""
    _, pool = regions(args.block_kib * 1024, args.pool_blocks, args.spans)
    backend = registry.create("tcp", options(args))
    backend.register(pool, lambda transfer, grant, packed: True)
    listening = socket.create_server(("127.0.0.1", 0))
    pipe.send((backend.describe(), listening.getsockname()[1]))
    taker, _ = listening.accept()
    data = memoryview(bytearray(args.mib * MIB))
    while taker.recv(1):
        taker.sendall(data)
    backend.close()


def raw_stream(sock: socket.socket, into: memoryview) -> float:
    """Seconds for one contiguous stream into one buffer."""
    began = time.perf_counter()
    sock.sendall(b"x")
    at = 0
    while at < len(into):
        at += sock.recv_into(into[at:])
    return time.perf_counter() - began


def block_read(
    target: Backend, peer: bytes, args: argparse.Namespace, nth: int, count: int
) -> float:
    """Seconds for one read of ``count`` scattered blocks into scattered blocks."""
    chance = random.Random(nth)
    request = ReadRequest(
        transfer=f"bench.{nth}",
        peer=peer,
        grant=b"",
        source_blocks=chance.sample(range(args.pool_blocks), count),
        target_blocks=chance.sample(range(args.pool_blocks), count),
        verify=Verify(args.verify),
        deadline_s=WAIT_S,
    )
    began = time.perf_counter()
    outcome = target.post(request).wait(WAIT_S)
    seconds = time.perf_counter() - began
    if outcome is None or outcome.error:
        sys.exit(f"the read failed: {outcome}")
    return seconds


@contextmanager
def busy_thread(on: bool) -> Iterator[None]:
    """Pure Python at work beside the receiver, as in an engine process."""
    stop = threading.Event()

    def work() -> None:
        count = 0
        while not stop.is_set():
            for _ in range(1000):
                count += 1

    thread = threading.Thread(target=work)
    if on:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if on:
            thread.join()


def measure(args: argparse.Namespace) -> dict[str, object]:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    source = context.Process(target=source_process, args=(theirs, args), daemon=True)
    source.start()
    peer, port = ours.recv()
    _, pool = regions(args.block_kib * 1024, args.pool_blocks, args.spans)
    target = registry.create("tcp", options(args))
    target.register(pool, lambda transfer, grant, packed: False)
    sock = socket.create_connection(("127.0.0.1", port))
    into = memoryview(bytearray(args.mib * MIB))

    def rate(seconds: float) -> float:
        return float(args.mib * MIB / seconds / 1e9)

    count = args.mib * 1024 // args.block_kib
    raw: list[float] = []
    idle: list[float] = []
    busy: list[float] = []
    for nth in range(args.rounds + 1):
        raw.append(rate(raw_stream(sock, into)))
        idle.append(rate(block_read(target, peer, args, nth, count)))
        with busy_thread(True):
            busy.append(rate(block_read(target, peer, args, nth, count)))
    small = [block_read(target, peer, args, nth, 1) * 1e6 for nth in range(SMALL_READS)]
    with busy_thread(True):
        small_busy = [
            block_read(target, peer, args, nth, 1) * 1e6 for nth in range(SMALL_READS // 10)
        ]
    sock.close()
    target.close()
    source.join(WAIT_S)
    medians = [statistics.median(values[1:]) for values in (raw, idle, busy)]
    return {
        "mib": args.mib,
        "block_kib": args.block_kib,
        "spans": args.spans,
        "verify": args.verify,
        "tls": args.tls,
        "connections": args.connections,
        "rounds": args.rounds,
        "raw_gb_per_s": round(medians[0], 3),
        "read_gb_per_s": round(medians[1], 3),
        "read_busy_gb_per_s": round(medians[2], 3),
        "ratio_idle": round(medians[1] / medians[0], 3),
        "ratio_busy": round(medians[2] / medians[0], 3),
        "one_block_p50_us": round(statistics.median(small), 1),
        "one_block_p99_us": round(statistics.quantiles(small, n=100)[98], 1),
        "one_block_busy_p50_us": round(statistics.median(small_busy), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of one read")
    parser.add_argument("--block-kib", type=int, default=64)
    parser.add_argument("--spans", type=int, default=1, help="layers that share a block's bytes")
    parser.add_argument("--pool-blocks", type=int, default=8192)
    parser.add_argument("--connections", type=int, default=0, help="0: as the backend chooses")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--verify", choices=[mode.value for mode in Verify], default="sample")
    sys.stdout.write(json.dumps(measure(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
