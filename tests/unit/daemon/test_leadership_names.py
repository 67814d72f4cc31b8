"""Elections under one name: a living namesake's, a former process's, one's own that came late."""

from __future__ import annotations

import pytest
from tests.unit.daemon.support import SPACE, FakeNode, ask, intrude, running, until

from kvferry.core.commands import SetPolicy
from kvferry.core.events import LeaderElected, NodeClosed
from kvferry.daemon.standing import NotLeader
from kvferry.errors import LedgerUnavailable
from kvferry.ledger.codec import decode
from kvferry.ledger.memory import MemoryLog
from kvferry.ledger.streams import StreamLimits
from kvferry.ledger.subjects import coord_subject
from kvferry.ports.log import FACTS_STREAM

NAMESAKE = "another coordinator also calls itself"


class LateLog(MemoryLog):
    """The first election gets lost on its way, and arrives just before the second."""

    def __init__(self, limits: StreamLimits) -> None:
        super().__init__(limits)
        self.late: dict[str, object] | None = None
        self.elections = 0

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        if subject == coord_subject(SPACE) and decode(data).entries:
            self.elections += 1
            if self.elections == 1:
                self.late = {"message_id": message_id, "expected_last": expected_last, "data": data}
                raise LedgerUnavailable("no answer")
            if self.late is not None:
                late, self.late = self.late, None
                await super().append(subject, **late)  # type: ignore[arg-type]
        return await super().append(
            subject, data, message_id=message_id, expected_last=expected_last
        )


async def test_an_election_that_is_stored_late_is_no_namesakes() -> None:
    log = LateLog(StreamLimits(facts_max_bytes=3_000))
    node = FakeNode(log, "p0")
    await node.join()
    while (await log.bounds(FACTS_STREAM)).first == 1:
        await node.facts(*[NodeClosed(incarnation="other")] * 20)
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: log.elections == 1, "it stands for election")
        # The stream grows, so that the next election is for another term.
        await node.facts(NodeClosed(incarnation="other"))
        await until(lambda: coordinator.decider.leads(SPACE), "it leads by the late one")
        assert log.elections == 2
        await ask(log, coordinator, verb="pause")
        assert coordinator.standing.leading


async def test_two_processes_of_one_replica_name_are_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads")
        await intrude(log, "c-a", 5, LeaderElected(term=5, replica="c-a"))
        with pytest.raises(NotLeader):
            await coordinator.decider.command(SPACE, SetPolicy(space=SPACE, mode="paused"))
    assert NAMESAKE in caplog.text


class LosingLog(MemoryLog):
    """The next decision gets lost on its way."""

    losing = False

    async def append(
        self, subject: str, data: bytes, *, message_id: str, expected_last: int | None = None
    ) -> int:
        if self.losing and subject == coord_subject(SPACE):
            self.losing = False
            raise LedgerUnavailable("no answer")
        return await super().append(
            subject, data, message_id=message_id, expected_last=expected_last
        )


async def test_a_former_process_of_the_same_name_is_no_namesake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LosingLog()
    await FakeNode(log, "p0").join()
    async with running(log, replica="c-a") as former:
        await until(lambda: former.decider.leads(SPACE), "it leads")
    log.losing = True
    async with running(log, replica="c-a") as coordinator:
        await until(lambda: coordinator.decider.leads(SPACE), "it leads after its second try")
        assert not log.losing
        assert coordinator.decider.term() == former.decider.term() + 1
    assert NAMESAKE not in caplog.text
