"""Coordinator processes as an operator starts them, and what the ledger says of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from tests.chaos.processes import BOUND_S, Process

from kvferry.core.events import COORD, AnyEvent, LeaderElected
from kvferry.core.messages import ANNOUNCE_SUBJECT, Announce, query_subject
from kvferry.daemon.messages import Query, decode_answer, encode_query
from kvferry.errors import CodecError, LedgerError
from kvferry.ledger.codec import decode
from kvferry.ledger.jetstream import JetStreamLedger, connect
from kvferry.ports.log import FACTS_STREAM, Reply

T = TypeVar("T")

LOOK_S = 0.5
AGAIN_S = 0.01


class Decided(NamedTuple):
    """One event of the coord lane as the ledger holds it."""

    seq: int
    stored_ms: int
    space: str
    replica: str
    term: int
    event: AnyEvent


class Replicas:
    """Coordinators on one ledger. Use as a context manager; it ends them all.

    Args:
        url: the ledger.
        folder: for their output.
        stream_replicas: copies of each stream that the first one creates.
    """

    def __init__(self, url: str, folder: Path, *, stream_replicas: int = 1) -> None:
        self.url = url
        self._folder = folder
        self._stream_replicas = stream_replicas
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.close()

    def start(
        self, name: str, *, url: str = "", within: Sequence[str] = (), **options: object
    ) -> Process:
        """Start the replica of that name, also again; ``url`` is its way to the ledger."""
        arguments = ["--nats", url or self.url, "--replica", name, "--cost", "off"]
        arguments += ["--stream-replicas", str(self._stream_replicas)]
        for option, value in options.items():
            arguments += [f"--{option.replace('_', '-')}", str(value)]
        command = [sys.executable, "-m", "kvferry.cli", "coordinator", *arguments]
        process = Process(command, self._folder / f"{name}.log", within=within)
        self.processes[name] = process
        return process

    def said(self) -> str:
        """The output of all of them."""
        return "\n".join(f"== {name}\n{p.said()}" for name, p in self.processes.items())

    # --- what the ledger and the bus say ----------------------------------------------------

    def use(self, action: Callable[[JetStreamLedger], Coroutine[Any, Any, T]]) -> T:
        """Run one action over a connection of its own."""

        async def run() -> T:
            ledger = await connect(self.url, name="test", timeout_s=BOUND_S)
            try:
                return await action(ledger)
            finally:
                await ledger.close()

        return asyncio.run(run())

    def announced(
        self,
        condition: Callable[[dict[str, Announce]], object],
        what: str,
        *,
        bound_s: float = BOUND_S,
    ) -> dict[str, Announce]:
        """The last announcement of each replica, once the condition holds over them."""

        async def listen(ledger: JetStreamLedger) -> dict[str, Announce]:
            heard: dict[str, Announce] = {}
            enough = asyncio.Event()

            async def on_announce(subject: str, data: bytes, reply: Reply | None) -> None:
                one = msgspec.msgpack.decode(data, type=Announce)
                heard[one.replica] = one
                if condition(heard):
                    enough.set()

            stop = await ledger.subscribe(ANNOUNCE_SUBJECT, on_announce)
            left_s = bound_s
            try:
                while not enough.is_set():
                    crashed = [name for name, one in self.processes.items() if one.crashed]
                    assert not crashed, f"{crashed} ended by themselves\n{self.said()}"
                    assert left_s > 0, (
                        f"not within {bound_s:g} s: {what}; heard {heard}\n{self.said()}"
                    )
                    left_s -= LOOK_S
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await enough.wait()
            finally:
                await stop()
            return heard

        return self.use(listen)

    def wait_serving(self, *names: str) -> None:
        """Wait until each of them announces itself."""
        self.announced(lambda heard: set(names) <= set(heard), f"{names} serve")

    def leader(self, *, but: str = "") -> str:
        """The one replica that says it leads and holds a term."""

        def leading(heard: dict[str, Announce]) -> list[str]:
            return [
                one.replica
                for one in heard.values()
                if one.leader and one.term and one.replica != but
            ]

        return leading(self.announced(lambda heard: len(leading(heard)) == 1, "one leads"))[0]

    def query(self, replica: str, verb: str, **fields: Any) -> dict[str, Any]:
        """One replica's answer."""

        async def asked(ledger: JetStreamLedger) -> dict[str, Any]:
            question = encode_query(Query(verb=verb, **({"who": "test"} | fields)))
            return decode_answer(await ledger.request(query_subject(replica), question, BOUND_S))

        return self.use(asked)

    def tell(self, replica: str, verb: str, **fields: Any) -> None:
        """Ask without waiting for an answer; the server has it when this returns."""

        async def told(ledger: JetStreamLedger) -> None:
            question = encode_query(Query(verb=verb, **fields))
            asking = asyncio.create_task(ledger.request(query_subject(replica), question, BOUND_S))
            await asyncio.sleep(0)
            await ledger.bounds(FACTS_STREAM)  # An answer to a later message.
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        self.use(told)

    def decide(self, names: Sequence[str], verb: str, **fields: Any) -> float:
        """Ask these replicas until one has stored the decision; when, on the monotonic clock."""
        question = encode_query(Query(verb=verb, **({"who": "test"} | fields)))

        async def insist(ledger: JetStreamLedger, name: str) -> float:
            while True:
                try:
                    reply = await ledger.request(query_subject(name), question, BOUND_S)
                except LedgerError:
                    reply = b"{}"
                if "set" in decode_answer(reply):
                    return time.monotonic()
                await asyncio.sleep(AGAIN_S)

        async def run(ledger: JetStreamLedger) -> float:
            asking = {asyncio.create_task(insist(ledger, name)) for name in names}
            done, left = await asyncio.wait(
                asking, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            assert done, f"nobody decided within {BOUND_S:g} s\n{self.said()}"
            return min(task.result() for task in done)

        return self.use(run)

    def decisions(self) -> list[Decided]:
        """Every event of the coord lane, in order."""

        async def read(ledger: JetStreamLedger) -> list[Decided]:
            found = []
            async for stored in ledger.read(FACTS_STREAM):
                try:
                    batch = decode(stored.data)
                except CodecError:
                    continue
                if batch.lane == COORD:
                    found += [
                        Decided(
                            stored.seq,
                            stored.stored_ms,
                            batch.space,
                            batch.node,
                            batch.epoch,
                            entry.event,
                        )
                        for entry in batch.entries
                    ]
            return found

        return self.use(read)


def in_order(decisions: list[Decided]) -> list[str]:
    """Assert that each decision was its present leader's; who was elected, in order.

    This is what the fence is for: a write of a deposed leader would stand behind the election of
    the next one, under a lower term.
    """
    elected: list[str] = []
    present: dict[str, tuple[int, str]] = {}
    for one in decisions:
        term, _ = present.get(one.space, (0, ""))
        if isinstance(one.event, LeaderElected):
            assert one.event.term == one.term == term + 1, (one, term)
            present[one.space] = (one.term, one.replica)
            elected.append(one.replica)
        assert present[one.space] == (one.term, one.replica), (one, present)
    return elected
