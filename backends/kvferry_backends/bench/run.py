"""The rows of a measurement, one after the other, and the document that they make."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import msgspec

from kvferry.errors import BackendError
from kvferry_backends.bench.child import Child
from kvferry_backends.bench.messages import PATTERNS, Measure, Open, Opened
from kvferry_backends.bench.settings import Settings
from kvferry_backends.bench.talk import LinkLost, Remote, call

A, B = "a", "b"
DIRECTIONS = ((A, B), (B, A))
"""(source, target): the bytes go from the first to the second, which reads."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table and one of ``rows`` in the JSON document."""

    backend: str
    block_bytes: int
    """Of a block in one layer."""
    layers: int
    pattern: str
    """``scattered`` or ``contiguous``."""
    direction: str
    """``a->b``: b reads from a."""
    gb_per_s: float
    share_of_raw: float
    raw: str
    """What the limit is: ``memcpy``, ``device_copy`` or ``stream``."""
    raw_gb_per_s: float
    p50_ms: float
    """A read of one block."""
    p99_ms: float
    reads: int
    bytes_per_read: int
    checked_blocks: int


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A row that could not be measured."""

    backend: str
    block_bytes: int
    pattern: str
    direction: str
    error: str


class Report(msgspec.Struct, kw_only=True):
    """Everything that a run found out."""

    when: str
    """UTC, ISO 8601."""
    settings: Settings
    ends: dict[str, str] = {}
    """The machines in words."""
    rows: list[Row] = []
    failures: list[Failed] = []
    left_out: dict[str, dict[str, str]] = {}
    """By end and backend: why it does not work there."""
    ended_early: str = ""
    """Why rows are missing at the end."""


class Step(NamedTuple):
    """What is measured next."""

    backend: str
    block_bytes: int
    pattern: str
    source: str
    target: str

    @property
    def direction(self) -> str:
        return f"{self.source}->{self.target}"


Told = Callable[[Step], None]


@contextmanager
def two_here(key: bytes, device: int, peer_device: int) -> Iterator[dict[str, Remote]]:
    """Both ends as processes of this machine, ended afterwards.

    Raises:
        LinkLost: one of them does not come up.
    """
    with ExitStack() as stack:
        yield {
            A: _child(stack, key, device, "127.0.0.1"),
            B: _child(stack, key, peer_device, "127.0.0.1"),
        }


@contextmanager
def one_here(
    key: bytes, device: int, address: str, listen_host: str
) -> Iterator[dict[str, Remote]]:
    """End ``a`` as a process of this machine, end ``b`` where somebody serves.

    Raises:
        ConfigError: the address is none, or the keys differ.
        LinkLost: nobody is there.
    """
    with ExitStack() as stack:
        there = Remote(call(address, key))
        stack.callback(there.close)
        yield {A: _child(stack, key, device, listen_host), B: there}


def _child(stack: ExitStack, key: bytes, device: int, listen_host: str) -> Remote:
    child = Child(key, device=device, listen_host=listen_host)
    stack.callback(child.close)
    remote = Remote(call(child.address, key))
    stack.callback(remote.close)
    return remote


def row_count(settings: Settings) -> int:
    """Rows of a run in which every backend works."""
    per_size = len(settings.backends) * len(DIRECTIONS) * len(PATTERNS)
    return len(settings.block_bytes) * per_size


def measure(
    ends: Mapping[str, Remote],
    settings: Settings,
    *,
    next_is: Told = lambda step: None,
    report: Report | None = None,
) -> Report:
    """Every row; a backend that fails at a block size is left alone at that size.

    ``report`` is filled as rows come, so that an interrupted run has those that it measured.

    Raises:
        ConfigError: an option does not fit.
        BackendError: an end has no such memory.
    """
    if report is None:
        report = new_report(settings)
    try:
        for size in settings.block_bytes:
            seeds = {name: f"{name}/{size}" for name in ends}
            opened = {
                name: end.open(Open(settings=settings, block_bytes=size, seed=seeds[name]))
                for name, end in ends.items()
            }
            report.ends = {name: one.what for name, one in opened.items()}
            report.left_out = {name: one.left_out for name, one in opened.items()}
            for backend in settings.backends:
                if all(backend in one.backends for one in opened.values()):
                    _measure_backend(ends, opened, backend, size, seeds, report, next_is)
            for end in ends.values():
                end.shut()
    except LinkLost as lost:
        report.ended_early = str(lost)
    return report


def new_report(settings: Settings) -> Report:
    """A report without rows."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Report(when=now, settings=settings)


def _measure_backend(
    ends: Mapping[str, Remote],
    opened: Mapping[str, Opened],
    backend: str,
    size: int,
    seeds: Mapping[str, str],
    report: Report,
    next_is: Told,
) -> None:
    for source, target in DIRECTIONS:
        for pattern in PATTERNS:
            step = Step(backend, size, pattern, source, target)
            next_is(step)
            asked = _asked(step, opened, seeds, report.settings)
            try:
                report.rows.append(_row(step, report.settings.layers, asked, ends[target]))
            except LinkLost:
                raise
            except BackendError as error:
                report.failures.append(
                    Failed(
                        backend=backend,
                        block_bytes=size,
                        pattern=pattern,
                        direction=step.direction,
                        error=str(error),
                    )
                )
                return


def _asked(
    step: Step, opened: Mapping[str, Opened], seeds: Mapping[str, str], settings: Settings
) -> Measure:
    source, target = opened[step.source], opened[step.target]
    offer = source.backends[step.backend]
    return Measure(
        backend=step.backend,
        peer=offer.description,
        peer_seed=seeds[step.source],
        pattern=step.pattern,
        verify=settings.verify,
        seconds=settings.seconds,
        raw=raw_kind(settings.memory, offer.same_host_only, source.host == target.host),
        raw_address=source.raw_address,
        raw_token=source.raw_token,
        peer_device=source.device,
    )


def raw_kind(memory: str, same_host_only: bool, same_host: bool) -> str:
    """Which plain copy is the limit of a link: what the hardware between the pools can do, and a
    socket stream where the backend may have to cross a network."""
    if memory == "cuda" and same_host:
        return "device_copy"
    return "memcpy" if same_host_only else "stream"


def _row(step: Step, layers: int, asked: Measure, target: Remote) -> Row:
    found = target.measure(asked)
    return Row(
        backend=step.backend,
        block_bytes=step.block_bytes,
        layers=layers,
        pattern=step.pattern,
        direction=step.direction,
        gb_per_s=round(found.gb_per_s, 4),
        share_of_raw=round(found.gb_per_s / found.raw_gb_per_s, 4),
        raw=asked.raw,
        raw_gb_per_s=round(found.raw_gb_per_s, 4),
        p50_ms=round(found.p50_ms, 4),
        p99_ms=round(found.p99_ms, 4),
        reads=found.reads,
        bytes_per_read=found.bytes_per_read,
        checked_blocks=found.checked_blocks,
    )


def document(report: Report) -> dict[str, Any]:
    """The report as plain JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found
