"""What moves now: the transfers that the fold shows as open, and plans whose answer is under way.

Derived and not part of the state: whoever follows the fold says what began and ended, and when on
a clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kvferry.core.cost import LinkCost

PROMISED_MS_MAX = 2_000.0
"""A plan that opened no transfer by then will open none, as far as others are concerned."""
OPEN_MS_MAX = 60_000.0
"""A transfer that is open for longer is thought to be stuck, and takes nothing from others."""
GUESS_BYTES_PER_MS = 5e6
"""A link that is not known. No choice between moving and computing is made by it."""
LATE_SHARE = 0.5
"""A transfer that is late is thought to need this share of the time that it has taken."""
FLOWS_MAX = 8_192
WAITING_MAX = 256
"""Requests of one target."""
ASKED_MS_MAX = 500.0
"""Who does not ask again within so long after its time has gone."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transfer, or one that a plan has proposed."""

    source: str
    target: str
    begun_ms: float
    service_ms: float
    """What it takes when the link is its own."""
    blocks: int = 0
    """From the prompt's first on."""
    size_bytes: int = 0
    upto: bytes = b""
    """Short hash of the last sampled block among them."""
    request: str = ""
    promised: bool = False
    """The plan is given, the transfer not heard of yet."""

    def left_ms(self, now_ms: float) -> float:
        """What it still takes, if nothing is in its way; 0 once it counts no more."""
        took = max(0.0, now_ms - self.begun_ms)
        if took > (PROMISED_MS_MAX if self.promised else OPEN_MS_MAX):
            return 0.0
        return max(self.service_ms - took, LATE_SHARE * took, 1.0)

    def late_ms(self, now_ms: float) -> float:
        """For how long it should have been over; below 0 before."""
        return now_ms - self.begun_ms - self.service_ms


class InFlight:
    """The flows of one space by their ends."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}
        self._out: dict[str, dict[str, None]] = {}
        self._into: dict[str, dict[str, None]] = {}
        self._upto: dict[str, dict[str, None]] = {}
        self._waiting: dict[str, dict[str, tuple[bytes, float]]] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def begin(self, key: str, flow: Flow) -> None:
        """A transfer opened; the promise that it keeps is over."""
        if flow.request:
            self.decline(flow.target, flow.request)
        self.end(key)
        if len(self._flows) >= FLOWS_MAX:
            self.end(next(iter(self._flows)))
        self._flows[key] = flow
        for side, name in self._sides(flow):
            side.setdefault(name, {})[key] = None

    def promise(self, flow: Flow) -> None:
        """A plan proposed this to a request; a later plan for it replaces the earlier one."""
        self.begin(promise_key(flow.target, flow.request), flow)

    def end(self, key: str) -> None:
        """It is over; an unknown key is ignored."""
        flow = self._flows.pop(key, None)
        if flow is None:
            return
        for side, name in self._sides(flow):
            keys = side[name]
            del keys[key]
            if not keys:
                del side[name]

    def decline(self, target: str, request: str) -> None:
        """The request opened no transfer, and waits for none."""
        self.end(promise_key(target, request))
        waiting = self._waiting.get(target)
        if waiting is not None and waiting.pop(request, None) is not None and not waiting:
            del self._waiting[target]

    def wait(self, target: str, request: str, upto: bytes, until_ms: float) -> None:
        """The request, which wants the prefix that ends there, was told to ask again then."""
        waiting = self._waiting.setdefault(target, {})
        if request not in waiting and len(waiting) >= WAITING_MAX:
            del waiting[next(iter(waiting))]
        waiting[request] = upto, until_ms

    def waiting(self, target: str, but: bytes, now_ms: float) -> int:
        """Prefixes that requests of the target wait for, besides the one that ends with ``but``."""
        waiting = self._waiting.get(target, {})
        for request in [r for r, (_, at) in waiting.items() if now_ms > at + ASKED_MS_MAX]:
            self.decline(target, request)
        return len({upto for upto, _ in waiting.values() if upto != but})

    def out_of(self, source: str, now_ms: float) -> list[Flow]:
        """What the node sends now."""
        return list(self._live(self._out.get(source), now_ms))

    def into(self, target: str, now_ms: float) -> list[Flow]:
        """What the node receives now."""
        return list(self._live(self._into.get(target), now_ms))

    def bringing(self, upto: bytes, now_ms: float) -> list[Flow]:
        """What brings a prefix that ends with this sampled block to some node."""
        return list(self._live(self._upto.get(upto.hex()), now_ms))

    def keys(self) -> tuple[str, ...]:
        """Every key, promises included."""
        return tuple(self._flows)

    def get(self, key: str) -> Flow | None:
        """The flow of that key."""
        return self._flows.get(key)

    def _sides(self, flow: Flow) -> tuple[tuple[dict[str, dict[str, None]], str], ...]:
        ends = (self._out, flow.source), (self._into, flow.target)
        return (*ends, (self._upto, flow.upto.hex())) if flow.upto else ends

    def _live(self, keys: dict[str, None] | None, now_ms: float) -> Iterator[Flow]:
        for key in list(keys or ()):
            flow = self._flows[key]
            if flow.left_ms(now_ms) > 0.0:
                yield flow
            elif flow.promised:
                self.end(key)


def promise_key(target: str, request: str) -> str:
    """The key of a promise; it is no transfer's, for these have no blank in them."""
    return f"{target} {request}"


def service_ms(link: LinkCost | None, size_bytes: int) -> float:
    """What a transfer takes on a link of its own; a guess where the link is not known."""
    known = link.predict(size_bytes) if link is not None else None
    return size_bytes / GUESS_BYTES_PER_MS if known is None else known


def queue_ms(flows: Iterable[Flow], own_ms: float, now_ms: float) -> float:
    """How much longer a transfer of ``own_ms`` takes beside these, all sharing one link."""
    return sum(min(flow.left_ms(now_ms), own_ms) for flow in flows)
