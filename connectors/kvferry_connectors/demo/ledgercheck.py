"""Does the ledger tell the truth? Against vLLM's own metrics, and against itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kvferry.core.events import (
    NAMES,
    Event,
    Evicted,
    Gap,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
)
from kvferry.core.messages import query_subject
from kvferry.errors import CodecError
from kvferry.ports.log import BLOCKS_STREAM
from kvferry_connectors.demo.engines import Engine
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.figures import LedgerFigures, Reconciled
from kvferry_connectors.demo.records import Records, facts_of
from kvferry_connectors.demo.stack import Stack

BLOCK_EVENTS = (Produced, Retained, Evicted, Requested, Transferred)
DIGEST_S = 10.0


@dataclass(frozen=True)
class Counted:
    """One process life of an engine, and vLLM's count of its prompt tokens by source."""

    node: str
    incarnation: str
    sources: dict[str, int]


async def counted(stack: Stack, engine: Engine) -> Counted:
    """What vLLM counts on a running engine now.

    Raises:
        DemoError: its metrics cannot be read.
    """
    incarnation = stack.records.incarnation(engine.name) or ""
    return Counted(engine.name, incarnation, await engine.sources(stack.http))


async def check_ledger(
    stack: Stack, lost: list[Counted], needed: Sequence[type[Event]] = BLOCK_EVENTS
) -> LedgerFigures:
    """Everything that can be checked from outside, once all is quiet.

    Args:
        lost: the counts of engines that do not live any more.
        needed: events that there must be at least one of.

    Raises:
        DemoError: the ledger or an engine cannot be asked.
    """
    records, settings = stack.records, stack.settings
    await records.until(records.settled, settings.ledger_s, "the end of every transfer and pin")
    living = [await counted(stack, engine) for engine in stack.engines.values()]
    events = Counter(NAMES[type(fact.event)] for fact in records.facts)
    undecodable = records.undecodable
    async for stored in stack.ledger.read(BLOCKS_STREAM):
        try:
            events.update(NAMES[type(fact.event)] for fact in facts_of(stored))
        except CodecError:
            undecodable += 1
    live = await _live_digest(stack)
    replayed = json.loads(
        await stack.command("replay", "--afresh", "--to", str(live.position), "--digest", "--json")
    )
    return LedgerFigures(
        events=dict(sorted(events.items())),
        missing_events=tuple(NAMES[k] for k in needed if not events[NAMES[k]]),
        quarantined=undecodable,
        gaps=sum(event.count for _, event in records.of(Gap)),
        unsettled_transfers=unsettled(records),
        unbalanced_requests=unbalanced(records),
        engines=tuple(reconcile(records, one) for one in [*living, *lost]),
        live_digest=live.digest,
        replay_digest=replayed["digest"],
        position=live.position,
    )


def reconcile(records: Records, one: Counted) -> Reconciled:
    """The ledger's count of one process life beside vLLM's own."""
    ended = [e for f, e in records.of(RequestEnded) if f.incarnation == one.incarnation]
    ledger = {
        "local_compute": sum(e.computed_tokens for e in ended),
        "local_cache_hit": sum(e.local_tokens for e in ended),
        "external_kv_transfer": sum(e.pulled_tokens for e in ended),
    }
    return Reconciled(one.node, one.incarnation, ledger, one.sources)


def unsettled(records: Records) -> int:
    """Transfers with no outcome, with more than one, or with one that nobody asked for."""
    wanted = {event.transfer for _, event in records.of(Requested) if event.transfer}
    outcomes = Counter(event.transfer for _, event in records.of(Transferred))
    outcomes.update(event.transfer for _, event in records.of(TransferFailed))
    return sum(outcomes[transfer] != 1 for transfer in wanted | outcomes.keys())


def unbalanced(records: Records) -> int:
    """Requests whose tokens by source do not add up to their prompt."""
    return sum(
        e.local_tokens + e.pulled_tokens + e.computed_tokens != e.prompt_tokens
        for _, e in records.of(RequestEnded)
    )


class _Digest(msgspec.Struct):
    """The coordinator's answer."""

    position: int = 0
    digest: str = ""
    error: str = ""


async def _live_digest(stack: Stack) -> _Digest:
    """The coordinator's own state, at least as far as the last fact that we saw."""
    query = {
        "verb": "digest",
        "position": stack.records.facts[-1].seq,
        "timeout_s": DIGEST_S,
    }
    answer = msgspec.json.decode(
        await stack.ledger.request(
            query_subject(stack.replica), msgspec.json.encode(query), DIGEST_S + 1
        ),
        type=_Digest,
    )
    if answer.error:
        raise DemoError(f"the coordinator gives no digest: {answer.error}")
    return answer
