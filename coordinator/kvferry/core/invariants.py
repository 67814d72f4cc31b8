"""What must hold in every state, whatever was folded; checked by tests and by the audit."""

from __future__ import annotations

from kvferry.core.events import FACTS
from kvferry.core.slots import FREE, HELD, SLOT_PHASES
from kvferry.core.slots_state import SLOT_NODES_MAX, leased
from kvferry.core.state import (
    DONE,
    EARLY_LANES_MAX,
    EARLY_PINS_MAX,
    ENDED_TRANSFERS_MAX,
    FAILED,
    FENCED,
    HELD_BATCHES_MAX,
    JOINED,
    NODES_MAX,
    OPEN,
    QUARANTINED_MAX,
    RATES_MAX,
    LaneState,
    SpaceState,
    State,
)
from kvferry.core.trials import TRIALS_MAX
from kvferry.ids import SHORT_BYTES


def violations(state: State) -> list[str]:
    """Broken invariants in words; empty for a sound state."""
    found = []
    if len(state.quarantined) > QUARANTINED_MAX:
        found.append("the quarantine exceeds its bound")
    for name, space in state.spaces.items():
        for check in (_offers, _transfers, _slots, _lanes, _totals, _bounds):
            found += [f"{name}: {what}" for what in check(space)]
    return found


def _offers(space: SpaceState) -> list[str]:
    found = []
    for key, offer in space.offers.items():
        node = space.nodes.get(offer.node)
        if key != offer.offer:
            found.append(f"offer {offer.offer} is kept under {key}")
        if node is None or node.incarnation != offer.incarnation:
            found.append(f"offer {key} belongs to no present process of {offer.node}")
        elif node.status not in (JOINED, FENCED):
            found.append(f"offer {key} belongs to node {node.name}, which is {node.status}")
        if offer.count <= 0:
            found.append(f"offer {key} has {offer.count} blocks")
        elif len(offer.hashes) > max(0, offer.count - offer.base) * SHORT_BYTES:
            found.append(f"offer {key} lists hashes beyond its {offer.count} blocks")
    return found


def _transfers(space: SpaceState) -> list[str]:
    found = []
    over = set(space.ended)
    if len(over) != len(space.ended):
        found.append("a transfer ended twice")
    for key, transfer in space.transfers.items():
        ended = transfer.phase in (DONE, FAILED)
        if transfer.phase not in (OPEN, DONE, FAILED):
            found.append(f"transfer {key} has phase {transfer.phase}")
        if ended != (key in over):
            found.append(f"transfer {key} is {transfer.phase}, its end says otherwise")
        if transfer.phase != OPEN:
            continue
        node = space.nodes.get(transfer.target)
        if node is None or node.incarnation != transfer.target_incarnation:
            found.append(f"transfer {key} is open at no present process of {transfer.target}")
        elif node.status not in (JOINED, FENCED):
            found.append(f"transfer {key} is open at {node.name}, which is {node.status}")
    found += [f"ended transfer {key} is gone" for key in over - space.transfers.keys()]
    totals = space.totals
    open_now = sum(1 for transfer in space.transfers.values() if transfer.phase == OPEN)
    if totals.transfers_opened != totals.transfers_done + totals.transfers_failed + open_now:
        found.append("transfers opened differ from ended and open ones")
    return found


def _slots(space: SpaceState) -> list[str]:
    found = []
    slots = space.slots
    for name, slot in slots.nodes.items():
        if name != slot.node.name or slot.phase not in SLOT_PHASES:
            found.append(f"the slot of {slot.node.name}, kept under {name}, is {slot.phase}")
        if slot.fence > slots.fence:
            found.append(f"the slot of {name} has fence {slot.fence}, which was never given")
        if (slot.phase in HELD and not slot.holder) or (slot.phase == FREE and slot.holder):
            found.append(f"the slot of {name} is {slot.phase}, its holder is {slot.holder!r}")
    running = leased(slots)
    if len({slot.fence for slot in running}) != len(running):
        found.append("two leases of slots have one fence")
    if slots.granted != sum(slots.ended.values()) + len(running):
        found.append("leases of slots that were given differ from ended and running ones")
    return found


def _lanes(space: SpaceState) -> list[str]:
    found = []
    for name, node in space.nodes.items():
        lane = node.lanes.get(FACTS)
        if lane is not None and (lane.incarnation, lane.epoch) != (node.incarnation, node.epoch):
            found.append(f"node {name} has the lane of another record")
        if node.incarnation in node.superseded:
            found.append(f"node {name} supersedes itself")
    lanes = [*space.early.values(), *(x for n in space.nodes.values() for x in n.lanes.values())]
    for lane in lanes:
        found += _held(lane)
    return found


def _held(lane: LaneState) -> list[str]:
    where = f"lane {lane.incarnation}/{lane.epoch}"
    seqs = [held.seq for held in lane.held]
    found = []
    if len(seqs) > HELD_BATCHES_MAX:
        found.append(f"{where} holds {len(seqs)} batches")
    if seqs != sorted(set(seqs)):
        found.append(f"{where} holds batches out of order")
    if seqs and seqs[0] <= lane.last + 1:
        found.append(f"{where} holds a batch that is due")
    return found


def _totals(space: SpaceState) -> list[str]:
    totals = space.totals
    counters = [getattr(totals, field) for field in totals.__struct_fields__]
    numbers = [one for one in counters if isinstance(one, int)]
    numbers += [n for one in counters if isinstance(one, dict) for n in one.values()]
    return ["a counter is negative"] if any(number < 0 for number in numbers) else []


def _bounds(space: SpaceState) -> list[str]:
    sizes = {
        "ended transfers": (len(space.ended), ENDED_TRANSFERS_MAX),
        "early pins": (len(space.early_pins), EARLY_PINS_MAX),
        "early lanes": (len(space.early), EARLY_LANES_MAX),
        "nodes": (sum(n.status not in (JOINED, FENCED) for n in space.nodes.values()), NODES_MAX),
        "rates": (len(space.rates), RATES_MAX),
        "trials": (len(space.trials), TRIALS_MAX),
        "choices of a backend": (len(space.choices), RATES_MAX),
        "prefill rates": (len(space.prefill), RATES_MAX),
        "decode nodes": (len(space.slots.nodes), SLOT_NODES_MAX),
    }
    return [f"{size} {what}, at most {most}" for what, (size, most) in sizes.items() if size > most]
