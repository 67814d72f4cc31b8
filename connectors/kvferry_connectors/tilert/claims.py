"""What the scheduler's side remembers of a claimed request."""

from __future__ import annotations

import math
import time
from typing import Any

from kvferry_connectors.tilert.errors import SendRefused, stage_of
from kvferry_connectors.tilert.fitting import Fit
from kvferry_connectors.tilert.layout import Stage
from kvferry_connectors.tilert.marks import Mark, read
from kvferry_connectors.tilert.metadata import SendOrder
from kvferry_connectors.tilert.outcomes import REFUSED, SENDING, RankOutcome, SendOutcome, joined
from kvferry_connectors.tilert.rid import rid_of

REPETITION_NEUTRAL = 1.0


class Claim:
    """A request whose KV goes to a decode node.

    The inbox's thread appends to ``parts`` and then sets ``outcome``, which the engine's thread
    reads; everything else is the engine's thread's own.
    """

    __slots__ = (
        "arrived",
        "due",
        "length",
        "mark",
        "may_send_until",
        "no_origin",
        "ordered",
        "outcome",
        "parts",
        "request",
        "rid",
        "send",
        "waited_ms",
        "waits_until",
    )

    def __init__(self, request: Any, rid: str, mark: Mark | None) -> None:
        self.request = request
        self.rid = rid
        self.mark = mark
        self.may_send_until = math.inf
        """When its node may be another request's; inf where the mark does not say."""
        self.length = 0
        """Bytes of staging memory on each rank."""
        self.waits_until = 0.0
        self.send = ""
        """Its send's name in the ledger; empty where it is not recorded."""
        self.no_origin = ""
        """Why its node was not told where the prompt comes from; empty where it was."""
        self.arrived = time.monotonic()
        self.waited_ms = 0.0
        """From its arrival to its order."""
        self.ordered = False
        """The workers were told to send it."""
        self.due = 0.0
        """When its outcome is known at the latest, once it is ordered."""
        self.parts: list[RankOutcome] = []
        self.outcome: SendOutcome | None = None

    @classmethod
    def of(cls, request: Any, params: dict[str, Any], *, randomized: bool) -> Claim:
        """A new request's; refused at once where its mark or its prompt cannot be used."""
        name = rid_of(request.request_id, randomized=randomized)
        try:
            mark = read(params)
        except SendRefused as refused:
            claim = cls(request, name, None)
            claim.refuse(refused)
            return claim
        claim = cls(request, mark.rid or name, mark)
        if mark.within_s:
            claim.may_send_until = claim.arrived + mark.within_s
        if not request.prompt_token_ids:
            claim.refuse(SendRefused("no_token_ids"))
        return claim

    @property
    def id(self) -> str:
        """As the engine calls the request."""
        return str(self.request.request_id)

    @property
    def target(self) -> str:
        """``host:port``; empty without a readable mark."""
        return f"{self.mark.host}:{self.mark.port}" if self.mark else ""

    @property
    def open(self) -> bool:
        """Whether it has still to be sent."""
        return not self.ordered and self.outcome is None

    def measure(self, fitted: Fit, ranks: int) -> None:
        """How much staging memory it takes on each of ``ranks`` that send."""
        layers = -(-fitted.profile.layers // ranks)
        shape = fitted.shape(self.request.num_prompt_tokens)
        self.length = Stage(shape, range(layers)).total_bytes

    def refuse(self, refused: SendRefused) -> None:
        """It is not sent."""
        self.outcome = SendOutcome(
            request=self.id,
            rid=self.rid,
            target=self.target,
            state=REFUSED,
            reason=refused.reason,
            detail=refused.detail,
            tokens=int(self.request.num_prompt_tokens),
            stage=stage_of(refused.reason),
        )

    def order(self, block_ids: tuple[list[int], ...], now: float) -> SendOrder:
        """What the workers are told, while there is time left at ``now``."""
        assert self.mark is not None
        left_s = self.may_send_until - now
        self.ordered = True
        self.waited_ms = 1000 * (now - self.arrived)
        tokens = self.request.prompt_token_ids
        return SendOrder(
            request=self.id,
            rid=self.rid,
            host=self.mark.host,
            port=self.mark.port,
            tokens=len(tokens),
            last_prompt_token=int(tokens[-1]),
            block_ids=tuple(tuple(ids) for ids in block_ids),
            sampling=self.mark.sampling,
            prompt_token_ids=tuple(tokens) if self._penalised() else (),
            within_s=left_s if left_s < math.inf else 0.0,
        )

    def heard(self, part: RankOutcome, ranks: int) -> bool:
        """A rank told its outcome; whether that was the last one."""
        self.parts.append(part)
        if len(self.parts) < ranks:
            return False
        self.outcome = joined(
            self.parts,
            rid=self.rid,
            target=self.target,
            tokens=int(self.request.num_prompt_tokens),
        )
        return True

    def reply(self) -> dict[str, Any]:
        """What the request's reply says, as far as it is known now."""
        said: dict[str, Any] = {"rid": self.rid, "target": self.target, "state": SENDING}
        refused = next((part for part in self.parts if part.state == REFUSED), None)
        known = self.outcome or refused
        if known is not None:
            said["state"] = known.state
            if known.state == REFUSED:
                said |= {"reason": known.reason, "detail": known.detail}
        return said

    def _penalised(self) -> bool:
        sampling = self.request.sampling_params
        given = getattr(sampling, "repetition_penalty", REPETITION_NEUTRAL)
        return bool(given is not None and float(given) != REPETITION_NEUTRAL)
