"""One frame of the live view: what is shown of a state, without how it is drawn. Pure."""

from __future__ import annotations

from kvferry.core.cost import rate_key
from kvferry.core.slots import FREE
from kvferry.core.slots_state import Slots
from kvferry.core.state import OPEN, NodeState, SpaceState, State, TransferState
from kvferry.ids import ROUTER_SPACE
from kvferry.replay.live.recent import SPANS_S, Counts, Recent
from kvferry.replay.live.rows import (
    Around,
    Frame,
    LinkRow,
    MissRow,
    Moving,
    NodeRow,
    SlotRow,
    SpaceFrame,
    Use,
    Window,
)
from kvferry.replay.retained import keeps

MISSES_MAX = 8
LINKS_MAX = 20
TRANSFERS_MAX = 20


def frame(state: State, recent: Recent, around: Around) -> Frame:
    """What there is to show; goes over every offer once."""
    routers = state.spaces.get(ROUTER_SPACE)
    last_seq = max(around.last_seq, state.position)
    lag = last_seq - state.position
    return Frame(
        time_ms=around.now_ms,
        position=state.position,
        last_seq=last_seq,
        lag_messages=lag,
        lag_ms=max(0, around.now_ms - around.folded_ms) if lag and around.folded_ms else 0,
        trouble=around.trouble,
        replicas=around.replicas,
        spaces=tuple(
            _space(name, space, recent, around)
            for name, space in sorted(state.spaces.items())
            if name != ROUTER_SPACE
        ),
        slots=() if routers is None else _slots(routers.slots, around.now_ms),
        routers=() if routers is None else tuple(sorted(routers.nodes)),
        turns=0 if routers is None else routers.totals.turns,
        quarantined=state.quarantined_total,
    )


def _space(name: str, space: SpaceState, recent: Recent, around: Around) -> SpaceFrame:
    moving = [one for one in space.transfers.values() if one.phase == OPEN]
    sums = {span: recent.over(name, span, around.now_ms) for span in SPANS_S}
    return SpaceFrame(
        space=name,
        mode=space.mode,
        leader=space.leader,
        term=space.term,
        retention=space.retention.given(),
        retentions={node: own.given() for node, own in sorted(space.retentions.items())},
        nodes=_nodes(name, space, moving, around),
        windows=tuple(_window(span, sums[span], around) for span in SPANS_S),
        moving_total=len(moving),
        moving=tuple(_moving(one, around.now_ms) for one in moving[:TRANSFERS_MAX]),
        links=_links(
            space, moving, sums[SPANS_S[0]], sums[SPANS_S[1]], _seen_s(SPANS_S[0], around)
        ),
        misses=_misses(sums[SPANS_S[-1]], space.totals.misses),
    )


def _nodes(
    name: str, space: SpaceState, moving: list[TransferState], around: Around
) -> tuple[NodeRow, ...]:
    uses: dict[tuple[str, str], Use] = {}
    for offer in space.offers.values():
        use = uses.setdefault((offer.node, offer.tier), Use())
        use.runs += 1
        use.blocks += offer.count - offer.base

    def row(node: NodeState) -> NodeRow:
        return NodeRow(
            node=node.name,
            role=node.role,
            status=node.status,
            why=node.why,
            mode=space.mode_of(node.name),
            silent_s=around.silent_s.get((name, node.name)),
            blocks=node.blocks,
            host_blocks=node.host_blocks,
            cache=uses.get((node.name, "cache"), Use()),
            hbm=uses.get((node.name, "hbm"), Use()),
            host=uses.get((node.name, "host"), Use()),
            receives=sum(one.target == node.name for one in moving),
            sends=sum(one.source == node.name for one in moving),
            keeps=keeps(space, node),
        )

    return tuple(row(space.nodes[node]) for node in sorted(space.nodes))


def _seen_s(span_s: int, around: Around) -> float:
    """Of the last ``span_s`` seconds, those that were seen; a little above 0 at the least."""
    return max(0.001, min(float(span_s), (around.now_ms - around.since_ms) / 1_000))


def _window(span_s: int, sums: Counts, around: Around) -> Window:
    seen_s = _seen_s(span_s, around)
    carried = sum(sums.bytes.values())
    reused = sums.local_tokens + sums.pulled_tokens
    return Window(
        span_s=span_s,
        seen_s=seen_s,
        requests=sums.requests,
        requests_per_s=sums.requests / seen_s,
        prompt_tokens=sums.prompt_tokens,
        local_tokens=sums.local_tokens,
        pulled_tokens=sums.pulled_tokens,
        computed_tokens=sums.computed_tokens,
        prompt_sent=sums.prompt_sent,
        hit_share=reused / sums.prompt_tokens if sums.prompt_tokens else None,
        transfers=sum(sums.transfers.values()),
        failed=sums.failed,
        bytes=carried,
        bytes_per_s=carried / seen_s,
    )


def _moving(one: TransferState, now_ms: int) -> Moving:
    return Moving(
        transfer=one.transfer,
        request=one.request,
        source=one.source,
        target=one.target,
        backend=one.backend,
        blocks=one.granted,
        age_ms=max(0, now_ms - one.requested_ms),
    )


def _links(
    space: SpaceState, moving: list[TransferState], now: Counts, minute: Counts, seen_s: float
) -> tuple[LinkRow, ...]:
    under_way: dict[str, int] = {}
    for one in moving:
        link = rate_key(one.source, one.target, one.backend)
        under_way[link] = under_way.get(link, 0) + 1
    rows = []
    for link in sorted({*under_way, *minute.transfers}):
        known = space.rates.get(link)
        rows.append(
            LinkRow(
                link=link,
                open=under_way.get(link, 0),
                bytes_per_s=now.bytes.get(link, 0) / seen_s,
                transfers=minute.transfers.get(link, 0),
                learned_bytes_per_s=known.bytes_per_ms() * 1e3 if known and known.n else 0.0,
            )
        )
    rows.sort(key=lambda row: (-row.bytes_per_s, -row.open, row.link))
    return tuple(rows[:LINKS_MAX])


def _misses(lately: Counts, totals: dict[str, int]) -> tuple[MissRow, ...]:
    rows = [
        MissRow(cause=cause, lately=lately.misses.get(cause, 0), total=total)
        for cause, total in totals.items()
    ]
    rows.sort(key=lambda row: (-row.lately, -row.total, row.cause))
    return tuple(rows[:MISSES_MAX])


def _slots(slots: Slots, now_ms: int) -> tuple[SlotRow, ...]:
    rows = [
        SlotRow(
            node=name,
            phase=one.phase,
            drained=one.drained,
            holder=one.holder,
            request=one.request,
            session=one.session,
            fence=one.fence,
            age_ms=max(0, now_ms - one.since_ms),
            why=one.why,
            last=one.last,
        )
        for name, one in slots.nodes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.phase == FREE, -row.age_ms, row.node)))
