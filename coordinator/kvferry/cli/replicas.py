"""Find living coordinators and ask them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket

import msgspec

from kvferry.core.messages import ANNOUNCE_SUBJECT, Announce, query_subject
from kvferry.daemon.messages import Answer, Query, decode_answer, encode_query
from kvferry.errors import LedgerUnavailable
from kvferry.ports.log import BusPort, Reply

LISTEN_S = 5.0
"""Coordinators announce themselves once a second. One whose machine is so busy that it stands still
for a few seconds is not down, and an operator's command must reach it."""
ANSWER_S = 15.0
"""One that just started waits for its turn to lead before it sets a policy."""
NOT_LEADER = "not_leader"


async def heard(bus: BusPort) -> list[Announce]:
    """Coordinators that announced themselves, the leader first.

    Ends as soon as a leader was heard, and after :data:`LISTEN_S` at the latest.
    """
    found: dict[str, Announce] = {}
    led = asyncio.Event()

    async def on_announce(subject: str, data: bytes, reply: Reply | None) -> None:
        # Somebody else's bytes on our subject are not an announcement.
        with contextlib.suppress(msgspec.MsgspecError):
            announce = msgspec.msgpack.decode(data, type=Announce)
            found[announce.replica] = announce
            if announce.leader:
                led.set()

    stop = await bus.subscribe(ANNOUNCE_SUBJECT, on_announce)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_S):
                await led.wait()
    finally:
        await stop()
    return sorted(found.values(), key=lambda one: (not one.leader, one.replica))


async def ask(bus: BusPort, replicas: list[Announce], query: Query) -> Answer:
    """The answer of the first replica that gives one; a follower may send us to its leader.

    Raises:
        LedgerUnavailable: none of them answered in time.
    """
    waiting = [one.replica for one in replicas]
    asked: set[str] = set()
    last: Answer | None = None
    while waiting:
        replica = waiting.pop(0)
        if replica in asked:
            continue
        asked.add(replica)
        try:
            reply = await bus.request(query_subject(replica), encode_query(query), ANSWER_S)
        except LedgerUnavailable:
            continue
        answer = decode_answer(reply)
        if answer.get("reason") != NOT_LEADER:
            return answer
        last = answer
        if answer.get("leader"):
            waiting.insert(0, str(answer["leader"]))
    if last is not None:
        return last
    raise LedgerUnavailable(
        f"no coordinator answered within {ANSWER_S:.0f} s "
        f"(asked {', '.join(sorted(asked)) or 'none'})"
    )


def who() -> str:
    """Who typed the command, for the record of a policy."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
