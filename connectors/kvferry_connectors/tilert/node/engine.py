"""The engine that TileRT's server is given: the real one, with what it generates kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvferry_connectors.tilert.node.keeper import Keeper
from kvferry_connectors.tilert.node.rows import source_of
from kvferry_connectors.tilert.node.work import Generated, Work

log = logging.getLogger("kvferry.tilert.node")

ENDINGS = {"stop": "stop", "length": "length", "cancelled": "aborted"}
"""TileRT's words for how a generation ended as the ledger has them."""


class KeepingEngine:
    """Passes everything on; the answer is the engine's, token for token.

    TileRT's server has one request at a time and holds its lock from before ``inject`` until after
    ``decode``: what happens inside these calls happens before the slot is released.
    """

    def __init__(self, engine: Any, server: Any, keeper: Keeper) -> None:
        """``server`` is TileRT's receive server, whose buffer has the prompt."""
        self._engine = engine
        self._server = server
        self._keeper = keeper
        self._source = source_of(engine)
        self._work: Work | None = None
        if self._source is None:
            log.warning(
                "%s gives no rows: nothing that it generates is kept", type(engine).__name__
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def inject(self, req: Any) -> None:
        """The prompt is complete: it is copied for keeping while the engine works."""
        self._work = work = self._keeper.begin(req, self._server, self._source)
        try:
            self._engine.inject(req)
        except BaseException:
            self._work = None
            self._keeper.failed(work)
            raise

    def decode(
        self,
        first_token_id: int,
        max_tokens: int,
        sampling: Any,
        on_token: Callable[..., Any] | None = None,
        cancel_event: Any = None,
        grammar_session: Any = None,
        **more: Any,
    ) -> Any:
        """Generate, and have the rows copied before the return."""
        work, self._work = self._work, None
        options = {
            "on_token": on_token,
            "cancel_event": cancel_event,
            "grammar_session": grammar_session,
            **more,
        }
        if work is None:
            return self._engine.decode(first_token_id, max_tokens, sampling, **options)
        made: list[int] = []
        options["on_token"] = _noting(made, on_token)

        def rows_may_go() -> None:
            stopped = cancel_event is not None and cancel_event.is_set()
            how = "aborted" if stopped else "length" if len(made) >= max_tokens else "stop"
            self._keeper.generated(work, Generated(tuple(made), how))

        try:
            if self._source is None:
                tokens = self._engine.decode(first_token_id, max_tokens, sampling, **options)
            else:
                with self._source.before_reset(rows_may_go):
                    tokens = self._engine.decode(first_token_id, max_tokens, sampling, **options)
        except BaseException:
            self._keeper.failed(work)
            raise
        if work.generated is None:
            stats = getattr(self._engine, "last_stats", None) or {}
            how = ENDINGS.get(str(stats.get("finish_reason", "stop")), "stop")
            self._keeper.generated(work, Generated(tuple(int(t) for t in tokens), how))
        return tokens


def _noting(made: list[int], on_token: Callable[..., Any] | None) -> Callable[..., Any]:
    """``on_token`` with each token noted."""

    def noted(token: Any, *more: Any) -> Any:
        made.append(int(token))
        return on_token(token, *more) if on_token is not None else token

    return noted
