"""What the scheduler side remembers of a request while it lives."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from kvferry.node.pull.follower import Following
    from kvferry_connectors.vllm.joined import Joined

KEY = "kvferry"
"""Our one key in ``kv_transfer_params``: under MultiConnector the children's keys must differ."""


class PullState(enum.Enum):
    """Where a request's pull stands, as the engine thread sees it."""

    LOOKING = "looking"
    """A plan or a pin is under way."""
    READY = "ready"
    """The granted length is known, or the hint proved it."""
    LOADING = "loading"
    """Blocks are allocated and every rank has been told."""
    ENDED = "ended"


class Pull:
    """One attempt to get a request's prefix from another node.

    Threads of ours write ``granted`` first and ``state`` after it; the engine thread reads
    ``state`` first. ``cancelled`` goes the other way.
    """

    __slots__ = (
        "address",
        "answer_by",
        "basis",
        "cancelled",
        "doubt",
        "following",
        "granted",
        "hinted",
        "incarnation",
        "joined",
        "known",
        "limit",
        "miss",
        "observing",
        "options",
        "pinned_at",
        "predicted_ms",
        "prefill_ms",
        "queue_ms",
        "recompute_ms",
        "slots",
        "source",
        "started",
        "state",
        "transfer",
        "tried",
        "weighed_from",
    )

    def __init__(self, transfer: str, answer_by: float, started: float) -> None:
        self.transfer = transfer
        self.address = ""
        self.source = ""
        self.incarnation = ""
        self.basis = ""
        self.granted = 0
        self.state = PullState.LOOKING
        self.answer_by = answer_by
        self.started = started
        self.pinned_at = 0.0
        self.cancelled = False
        self.observing = False
        """Nothing is pulled: only what would have been is recorded."""
        self.known = False
        """What would have been pulled is known. Our threads set it last."""
        self.hinted = 0
        """Blocks that the hint promised; 0 without one."""
        self.joined: Joined | None = None
        self.following: Following | None = None
        """The source's prefill of the same prompt, while it goes on."""
        self.slots: list[None] = []
        """One entry while we hold a reserved outcome slot of the outbox."""
        self.miss = ""
        self.options: tuple[str, ...] = ()
        self.limit = 0
        """Blocks beyond which a trial asks for nothing; 0 without one."""
        self.predicted_ms = 0.0
        self.recompute_ms = 0.0
        self.queue_ms = 0.0
        self.doubt = 0.0
        self.prefill_ms = 0.0
        """To compute the whole prompt, as the coordinator thinks."""
        self.weighed_from = 0
        """Local tokens beyond which the rest of a hint's prefix was weighed; 0 if it was not."""
        self.tried = False
        """That rest was too dear, and a part of it is pulled to hear how fast the link is."""


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may carry under :data:`KEY`; every field is optional."""

    hint: Any = None
    id: str = ""
    session: str = ""
    reuse: str = ""
    """``off``: pull nothing for this request (benchmarks)."""
    handover: bool = False
    """The router says that another engine will decode this prompt."""
    publish: str = ""
    """Name under which another engine may pull this prompt's blocks while they are computed."""
    follow: str = ""
    """Name under which the hint's node publishes its prefill of this very prompt."""
    turn: int = 0
    """Number of the session's turn, from 1 on; 0 where the router does not know it."""
    retain_ms: int = 0
    """The client wants its session's blocks kept for so long."""
    end: bool = False
    """The client says that this is its session's last turn."""


def read_params(raw: Any) -> Params:
    """The request's parameters; whatever does not fit is ignored, for it may come from anybody."""
    if not isinstance(raw, dict):
        return Params()
    own = raw.get(KEY)
    if not isinstance(own, dict):
        return Params()

    def text(name: str) -> str:
        value = own.get(name)
        return value[:200] if isinstance(value, str) else ""

    def count(name: str) -> int:
        value = own.get(name)
        return value if type(value) is int and value > 0 else 0

    return Params(
        hint=own.get("hint"),
        id=text("id"),
        session=text("session"),
        reuse=text("reuse"),
        handover=own.get("handover") is True,
        publish=text("publish"),
        follow=text("follow"),
        turn=count("turn"),
        retain_ms=count("retain_ms"),
        end=own.get("end") is True,
    )


def scope_of(session: str, salt: str | None) -> str:
    """A session's name within its tenant's salt: nobody can end or keep another one's."""
    return f"{session}\0{salt or ''}" if session else ""


class Tracked:
    """One request."""

    __slots__ = (
        "admitted",
        "arrived",
        "computing",
        "finished",
        "hashes",
        "hinted",
        "id",
        "local_tokens",
        "miss",
        "offered_early",
        "params",
        "position",
        "prompt_blocks",
        "prompt_tokens",
        "pull",
        "pull_ms",
        "pulled_tokens",
        "results",
        "scope",
        "shareable",
        "source",
        "start_block",
        "started",
        "tenant",
        "told",
        "unannounced",
        "waited_ms",
    )

    def __init__(self, request: Any, block_size: int, arrived: float, shareable: bool) -> None:
        self.id: str = request.request_id
        self.params = read_params(request.kv_transfer_params)
        self.scope = scope_of(self.params.session, getattr(request, "cache_salt", None))
        """Its session as retention knows it; empty without one."""
        self.hashes: list[bytes] = request.block_hashes
        """The engine's own list: it grows as tokens are generated."""
        self.prompt_tokens: int = request.num_prompt_tokens
        self.prompt_blocks = min(self.prompt_tokens // block_size, len(self.hashes))
        self.shareable = shareable
        self.tenant = ""
        """Tag of its ``cache_salt`` in the ledger; empty without one."""
        self.hinted = ""
        """The offer that its hint named; empty without a genuine one."""
        self.arrived = arrived
        self.pull: Pull | None = None
        self.miss = ""
        self.unannounced: list[None] = [None]
        """One entry until the ``requested`` event is written; whoever takes it out writes it."""
        self.admitted = False
        self.computing = False
        """It was scheduled since it got its blocks, so that no load of any connector fills them."""
        self.started = False
        """It was scheduled before."""
        self.finished = False
        self.offered_early = False
        """Blocks of it were offered while it ran, so that the offer at its end is a new one."""
        self.told = False
        """No plan was waited for: the coordinator had said that nothing is held."""
        self.position = 0
        """How much of the ledger was known to what its plan, or its sparing one, came from."""
        self.waited_ms = 0.0
        """For how long it had waited for its turn when its plan came."""
        self.local_tokens = 0
        """What this engine had without us: its own prefix cache, or another connector's load."""
        self.pulled_tokens = 0
        self.start_block = 0
        """First block that the transfer fills."""
        self.source = ""
        self.pull_ms = 0.0
        self.results: list[Any] = []

    @property
    def session(self) -> str:
        """The session as the router named it."""
        return self.params.session

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that this engine computed itself."""
        return max(0, self.prompt_tokens - self.local_tokens - self.pulled_tokens)

    def scheduled(self, computed_tokens: int) -> None:
        """A step is scheduled on top of ``computed_tokens`` with KV, the first since it waited."""
        self.computing = True
        if self.started:
            return  # It was preempted: what it had at first is in the books.
        self.started = True
        others = computed_tokens - self.local_tokens - self.pulled_tokens
        if others > 0:
            self.local_tokens += others

    def report(self, node: str) -> dict[str, Any]:
        """What the reply says of this request."""
        return {
            "request": self.id,
            "node": node,
            "prompt_tokens": self.prompt_tokens,
            "local": self.local_tokens,
            "pulled": self.pulled_tokens,
            "computed": self.computed_tokens,
            "from": self.source if self.pulled_tokens else "",
            "ms": round(self.pull_ms, 1),
            "miss": "" if self.pulled_tokens else self.miss,
        }
