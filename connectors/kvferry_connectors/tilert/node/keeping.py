"""The two steps by which a request is kept. Both run on the keeper's thread."""

from __future__ import annotations

from kvferry_connectors.tilert.node.hashing import chain_hashes
from kvferry_connectors.tilert.node.membership import Membership
from kvferry_connectors.tilert.node.memory import Edge
from kvferry_connectors.tilert.node.received import form_of
from kvferry_connectors.tilert.node.work import Outcome, Unwanted, Work, copied
from kvferry_connectors.tilert.origin import OriginRefused


def prepare(work: Work, membership: Membership) -> None:
    """Copy the prompt's blocks while the engine generates.

    A source has to hold a chain from its first block on, and the prompt's bytes are in the receive
    buffer as prefill made them. So they are kept as they are, and what follows them can be found
    and read by anybody, whatever prefill itself still has.

    Raises:
        OriginRefused, Unwanted: nothing is kept.
    """
    origin, received = work.origin, work.received
    assert origin is not None
    assert received is not None
    member = membership.join(origin)
    if origin.last_turn:
        if origin.session and origin.hashes:
            member.tier.end_session(origin.session, origin.chain[0])
        raise OriginRefused("session_end", "")
    membership.check_mode()
    chain = origin.chain
    work.draft = member.tier.begin(chain, origin.session)
    member.memory.put_received(
        received, work.draft.have, work.draft.slots, origin.block_tokens, work.go
    )
    work.edge = Edge.of(origin, received, work.go)
    if not received.intact():
        raise OriginRefused("overwritten", "while the prompt was copied")
    work.received = None


def finish(work: Work, membership: Membership) -> None:
    """Copy the generated rows out of the engine, then make blocks of them and offer the chain.

    Raises:
        OriginRefused, Unwanted: nothing is kept.
    """
    origin, draft, edge = work.origin, work.draft, work.edge
    assert origin is not None
    assert draft is not None
    assert edge is not None
    assert work.source is not None
    assert work.generated is not None
    size = origin.block_tokens
    first, last = work.new_rows(size)
    if last <= first:
        raise OriginRefused("nothing_new", f"{len(work.generated.tokens)} tokens fill no block")
    rows = copied(work.source.rows(first, last))
    work.go()  # Else the slot was released while they were copied.
    work.taken.set()
    member = membership.member
    assert member is not None
    hashes = chain_hashes(origin, work.generated.tokens[: last - first])
    slots = member.tier.extend(draft, hashes)
    there = len(hashes) - len(slots)
    if there:
        # Generated before, word for word.
        begin = (first // size + there) * size - first
        rows = [(None if ki is None else ki[begin:], kv[begin:], pe[begin:]) for ki, kv, pe in rows]
        edge = Edge.none(origin)
    if slots:
        member.memory.put_generated(edge, rows, slots, form_of(origin), work.go)
    with work.lock:
        if work.outcome is not None:
            raise Unwanted
        retain_s = membership.retain_s(origin.retain_ms)
        member.tier.commit(draft, work.rid, origin.session, retain_s=retain_s)
        work.draft = None
        work.outcome = Outcome(kept=len(draft.hashes))
