"""A change of a decode slot in one plain sentence."""

from __future__ import annotations

from kvferry.core.events import SlotChanged
from kvferry.core.slots import (
    ABANDONED,
    CANCELLED,
    CONFIRMED,
    DRAINED,
    FOUND,
    GRANT,
    IDLE,
    OPENED,
    REFUSED,
    REGISTERED,
    REPLIED,
)

_ENDS = {
    REPLIED: "decode has replied",
    CANCELLED: "the node confirmed the cancel",
    REFUSED: "nothing was sent to the node",
    IDLE: "its holder was silent and the node is idle",
}


def slot_changed(event: SlotChanged) -> str:
    """What happened, in plain words."""
    lease = f"slot of {event.node}, fence {event.fence}"
    request = f" of request {event.request}" if event.request else ""
    why = f" ({event.why})" if event.why else ""
    by = f" by {event.who}" if event.who else ""
    match event.change:
        case change if change in (REGISTERED, FOUND):
            where = f"{event.http}, receives at {event.control}"
            first = ", to be seen idle before it is lent" if change == FOUND else ""
            return f"decode node {event.node} at {where} is named{by}{first}{why}"
        case change if change in (DRAINED, OPENED):
            what = "out of the pool" if change == DRAINED else "back in the pool"
            return f"decode node {event.node} is {what}{by}{why}"
        case change if change == GRANT:
            waited = f" after {event.waited_ms / 1_000:.2f} s of waiting" if event.waited_ms else ""
            session = f", session {event.session}" if event.session else ""
            return f"{lease}: lent to router {event.holder} for request {event.request}{waited}" + (
                session
            )
        case change if change == CONFIRMED:
            return f"{lease}: decoding{request} begins{why}"
        case change if change == ABANDONED:
            return f"{lease}: router {event.holder} lost sight{request}; it must be idle first{why}"
    return f"{lease}: the lease{request} ends, {_ENDS.get(event.change, event.change)}{why}"
