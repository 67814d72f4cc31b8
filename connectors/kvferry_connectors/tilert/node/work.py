"""One request on its way to being kept: what two threads know of it, and its one outcome."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from kvferry_connectors.tilert.node.memory import Edge, EngineRows
from kvferry_connectors.tilert.node.received import Received
from kvferry_connectors.tilert.node.rows import RowSource
from kvferry_connectors.tilert.node.tier import Draft
from kvferry_connectors.tilert.origin import Origin


class Generated(msgspec.Struct, frozen=True):
    """How a generation ended.

    ``tokens`` are those of the answer. The last one has no row: it was sampled and not fed. So a
    draft that verification refused, whose row may have been written, is never among those that
    count.
    """

    tokens: tuple[int, ...]
    outcome: str
    """``stop``, ``length``, ``aborted`` or ``error``."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of it."""

    kept: int = 0
    """Blocks, the prompt's included."""
    reason: str = ""
    """One of :data:`kvferry.core.story_not_kept.NOT_KEPT`, where nothing was kept."""
    detail: str = ""


class Unwanted(Exception):
    """The request has its outcome already: whatever is still done for it can stop."""


class Work:
    """One request, from its inject to its outcome.

    Attributes:
        origin: None where it is not known.
        taken: set once nothing of the engine's or the buffer's is needed any more.
        draft: its chain while that is written. Only the keeper's thread uses it, and ``edge``.
    """

    def __init__(self, rid: str, prompt_tokens: int) -> None:
        self.rid = rid
        self.prompt_tokens = prompt_tokens
        self.origin: Origin | None = None
        self.received: Received | None = None
        self.source: RowSource | None = None
        self.draft: Draft | None = None
        self.edge: Edge | None = None
        self.generated: Generated | None = None
        self.taken = threading.Event()
        self.lock = threading.Lock()
        """Held while the outcome is made, and while it is told."""
        self.outcome: Outcome | None = None
        self.told = False

    def go(self) -> None:
        """
        Raises:
            Unwanted: it has its outcome.
        """
        if self.outcome is not None:
            raise Unwanted

    def settle(self, outcome: Outcome) -> bool:
        """Its outcome, unless it has one; whether it had none."""
        with self.lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
        self.taken.set()
        return True

    def new_rows(self, block_tokens: int) -> tuple[int, int]:
        """The generated tokens whose rows make blocks full: first, and behind the last."""
        assert self.generated is not None
        written = self.prompt_tokens + max(0, len(self.generated.tokens) - 1)
        return self.prompt_tokens, written - written % block_tokens

    def forget(self) -> None:
        """Nothing of the engine's or the server's is referred to any more."""
        self.received = self.source = None
        self.edge = self.draft = None


def copied(rows: EngineRows) -> EngineRows:
    """In host memory, where the engine cannot change them."""
    return [(_copied(ki), _copied(kv), _copied(pe)) for ki, kv, pe in rows]


def _copied(part: Any) -> Any:
    return None if part is None else part.detach().to("cpu", copy=True)
