"""One event in one plain sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvferry.core.events import (
    NAMES,
    Checkpoint,
    Event,
    Evicted,
    Gap,
    Inventory,
    LeaderElected,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    PinEnded,
    PolicySet,
    Produced,
    Requested,
    RequestEnded,
    Retained,
    SendBegan,
    SendEnded,
    SlotChanged,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.retention_settings import AS_STARTED, in_words
from kvferry.core.state import COST_OFF
from kvferry.core.story_sends import send_began, send_ended, sent_ended
from kvferry.core.story_slots import slot_changed
from kvferry.core.story_words import counted as _n
from kvferry.core.story_words import milliseconds as _ms
from kvferry.core.story_words import size as _size

PIN_ENDS = {
    "intact": "the blocks were as promised",
    "void": "blocks were reused meanwhile, the target recomputes",
    "abort": "the target gave up",
    "deadline": "the target did not answer in time",
    "refused": "it was refused",
    "closed": "the source stopped",
}
EVICTIONS = {
    "reuse": "the engine needed the memory",
    "expired": "its time was over",
    "pressure": "memory was short",
    "superseded": "a longer run covers it",
    "session_end": "the session ended",
    "node_left": "the node left",
    "cleared": "the cache was reset",
    "paused": "kvferry is paused",
    "policy": "an operator lowered a budget",
}
LEASES = {
    "handover": "until another engine has read it",
    "retain": "because the client asked",
    "expected": "because its next turn is likely",
}
TIERS = {"cache": "offers", "hbm": "leases in GPU memory", "host": "leases in host memory"}


def describe(node: str, event: Event) -> str:
    """What happened, in plain words without a line break.

    Args:
        node: who wrote it, as its envelope says: a node, or a replica for decisions.
        event: any event of the ledger.
    """
    tell = _TELL.get(type(event))
    if tell is None:
        return f"{node} wrote {NAMES.get(type(event), type(event).__name__)}"
    return " ".join(tell(node, event).split())


def _extra(text: str) -> str:
    return f" ({text})" if text else ""


def _produced(node: str, event: Produced) -> str:
    how = "pulled" if event.via == "pulled" else "computed"
    blocks = _n(event.count, "block")
    return f"{node} has {how} {blocks} from block {event.start} on for request {event.request}"


def _retained(node: str, event: Retained) -> str:
    what = TIERS.get(event.tier, f"keeps in tier {event.tier}")
    run = f"{_n(event.count, 'block')} as {event.offer} rev {event.rev}"
    time = f" for {_ms(event.ttl_ms)}" if event.ttl_ms else ""
    request = f" of request {event.request}" if event.request else ""
    session = f", session {event.session}" if event.session else ""
    why = f", {LEASES.get(event.why, event.why)}" if event.why else ""
    return f"{node} {what} {run}{request}{time}{why}{session}"


def _evicted(node: str, event: Evicted) -> str:
    why = EVICTIONS.get(event.reason, event.reason)
    if event.reason == "superseded" and event.superseded_by:
        why = f"{why}: {event.superseded_by}"
    lost = f", {_n(event.count, 'block')} gone" if event.count else ""
    if not event.offer:
        return f"{node}'s engine dropped {_n(event.count, 'cached block')}: {why}"
    if event.keep <= 0:
        return f"{node} no longer offers {event.offer}{lost}: {why}"
    kept = _n(event.keep, "block")
    return f"{node} offers only the first {kept} of {event.offer} from now on{lost}: {why}"


def _requested(node: str, event: Requested) -> str:
    who = f"{node}, request {event.request}"
    local = f", {_n(event.local_tokens, 'token')} local" if event.local_tokens else ""
    if event.miss == "observe" and event.granted:
        blocks = f"{event.granted:,} of {_n(event.wanted, 'block')}"
        return (
            f"{who}: only observes, would pull {blocks} from {event.source}"
            f"{_extra(event.basis)}{_predicted(event)}{local}"
        )
    if not event.transfer:
        why = event.miss or "no reason given"
        told = ", known without a plan" if event.basis == "told" else ""
        return f"{who}: nothing pulled ({why}{told}), {_n(event.wanted, 'block')} wanted{local}"
    plan = f" by {event.basis}" if event.basis else ""
    backend = f" over {event.backend}" if event.backend else ""
    blocks = f"{event.granted:,} of {_n(event.wanted, 'block')}"
    return (
        f"{who}: pulls {blocks} from {event.source}{plan}{backend}"
        f"{_predicted(event)}{local}, transfer {event.transfer}"
    )


def _predicted(event: Requested) -> str:
    if not event.predicted_ms and not event.recompute_ms:
        return ""
    if not event.predicted_ms:
        return f", predicted {_ms(event.recompute_ms)} to recompute"
    against = f" against {_ms(event.recompute_ms)} to recompute" if event.recompute_ms else ""
    return f", predicted {_ms(event.predicted_ms)}{against}"


def _transferred(node: str, event: Transferred) -> str:
    blocks = f"{_n(event.count, 'block')} ({_n(event.tokens, 'token')}, {_size(event.bytes)})"
    checked = f", {_n(event.verified_blocks, 'block')} verified" if event.verified_blocks else ""
    if event.source == node:
        return (
            f"{node} got {blocks} from its own host tier in {_ms(event.total_ms)}{checked}, "
            f"transfer {event.transfer}"
        )
    host = f", {event.host_blocks} of them from its host tier," if event.host_blocks else ""
    stages = f"pin {_ms(event.pin_ms)}, read {_ms(event.read_ms)}, settle {_ms(event.settle_ms)}"
    return (
        f"{node} got {blocks} from {event.source}{host} over {event.backend} in "
        f"{_ms(event.total_ms)}: {stages}{checked}, transfer {event.transfer}"
    )


def _transfer_failed(node: str, event: TransferFailed) -> str:
    fence = f", fenced by {event.fence}" if event.fence else ""
    goes_on = "was aborted" if event.reason == "aborted" else "recomputes"
    return (
        f"{node} got nothing from {event.source}: {event.reason} at {event.stage}"
        f"{_extra(event.detail)} after {_ms(event.total_ms)}{fence}; request {event.request} "
        f"{goes_on}, transfer {event.transfer}"
    )


def _pin_ended(node: str, event: PinEnded) -> str:
    why = PIN_ENDS.get(event.how, event.how)
    if not event.granted:
        return (
            f"{node} lent {event.target} nothing: {why}{_extra(event.detail)}, "
            f"transfer {event.transfer}"
        )
    return (
        f"{node} held {_n(event.granted, 'block')} for {event.target} during {_ms(event.held_ms)}: "
        f"{why}{_extra(event.detail)}, transfer {event.transfer}"
    )


def _request_ended(node: str, event: RequestEnded) -> str:
    if event.prompt_sent:
        return sent_ended(node, event)
    # What was broken off need not have been computed; it counts as the rest of the prompt.
    broken_off = event.outcome in ("aborted", "error") and not event.output_tokens
    rest = "left to compute" if broken_off else "computed"
    parts = [
        f"{event.local_tokens:,} local",
        f"{event.pulled_tokens:,} pulled" + (f" from {event.source}" if event.source else ""),
        f"{event.computed_tokens:,} {rest}",
    ]
    first = f", first token after {_ms(event.ttft_ms)}" if event.output_tokens else ""
    miss = f"; nothing pulled: {event.miss}" if event.miss and not event.pulled_tokens else ""
    return (
        f"{node} ended request {event.request} ({event.outcome}): "
        f"{_n(event.prompt_tokens, 'prompt token')} = {' + '.join(parts)}, "
        f"{_n(event.output_tokens, 'token')} out{first}{miss}"
    )


def _turn_ended(node: str, event: TurnEnded) -> str:
    path = " then ".join(name for name in (event.prefill_node, event.decode_node) if name)
    reuse = f", {event.reuse}" if event.reuse else ""
    return (
        f"{node} answered turn {event.request} ({event.outcome}) over {path or 'no engine'}: "
        f"{_n(event.prompt_tokens, 'prompt token')}, {_n(event.output_tokens, 'token')} out, first "
        f"token after {_ms(event.ttft_ms)}, all after {_ms(event.total_ms)}{reuse}"
    )


def _node_joined(node: str, event: NodeJoined) -> str:
    pool = f" with {_n(event.blocks, 'block')} of {event.block_size} tokens" if event.blocks else ""
    role = f" as {event.role}" if event.role else ""
    warned = f", {_n(len(event.warnings), 'warning')}" if event.warnings else ""
    return (
        f"{node} joined{role} at {event.address}{pool}, incarnation {event.incarnation} "
        f"epoch {event.epoch}{warned}"
    )


def _node_closed(node: str, event: NodeClosed) -> str:
    return f"{node} stopped cleanly, incarnation {event.incarnation}"


def _gap(node: str, event: Gap) -> str:
    return f"{node} lost {_n(event.count, 'event')} of its {event.lane} lane: {event.why}"


def _inventory(node: str, event: Inventory) -> str:
    end = ", the last part: it replaces what was known" if event.last else ""
    return (
        f"{node} lists what it holds, part {event.part}: {_n(len(event.offers), 'offer')}, "
        f"{_n(len(event.transfers), 'open transfer')}{end}"
    )


def _link_probed(node: str, event: LinkProbed) -> str:
    use = f"{node} reads from {event.peer} over {event.backend} from now on: {event.why}"
    if event.why and not event.gb_per_s:
        return use
    rate = f"{event.gb_per_s:.3g} GB/s, at least {_ms(event.floor_ms)}"
    if event.why:
        return f"{use} ({rate})"
    return f"{node} measured {event.peer} over {event.backend}: {rate}"


def _leader_elected(node: str, event: LeaderElected) -> str:
    weighed = ", with cost off: plans move whatever is held" if event.cost == COST_OFF else ""
    return f"coordinator {event.replica} leads, term {event.term}{weighed}"


def _node_left(node: str, event: NodeLeft) -> str:
    return (
        f"coordinator {node} gave up node {event.node}, incarnation {event.incarnation} "
        f"epoch {event.epoch}: {event.why}"
    )


def _policy_set(node: str, event: PolicySet) -> str:
    where = f"node {event.node}" if event.node else "the whole space"
    who = f" by {event.who}" if event.who else ""
    if event.keeps:
        settings = in_words(event.retention or AS_STARTED, event.unset)
        return f"policy {event.version} for {where}: {settings}{'; set' + who if who else ''}"
    return f"policy {event.version}: {where} is {event.mode}{who}"


def _checkpoint(node: str, event: Checkpoint) -> str:
    return f"coordinator {node} stored the state at {event.position} as {event.object}"


_TELL: dict[type[Event], Callable[[str, Any], str]] = {
    Produced: _produced,
    Retained: _retained,
    Evicted: _evicted,
    Requested: _requested,
    Transferred: _transferred,
    TransferFailed: _transfer_failed,
    PinEnded: _pin_ended,
    RequestEnded: _request_ended,
    TurnEnded: _turn_ended,
    NodeJoined: _node_joined,
    NodeClosed: _node_closed,
    Gap: _gap,
    Inventory: _inventory,
    LinkProbed: _link_probed,
    LeaderElected: _leader_elected,
    NodeLeft: _node_left,
    PolicySet: _policy_set,
    Checkpoint: _checkpoint,
    SlotChanged: lambda _, event: slot_changed(event),
    SendBegan: send_began,
    SendEnded: send_ended,
}
