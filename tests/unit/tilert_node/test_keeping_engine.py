"""The wrapped engine answers as the engine does, and tells the keeper when rows may go."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.tilert_node.test_rows import Layer

from kvferry_connectors.tilert.node.engine import KeepingEngine
from kvferry_connectors.tilert.node.work import Generated, Work

REQUEST = SimpleNamespace(rid="r1", seq_len=10)


class Keeper:
    """Stands in for the keeper: what it is told, and what it finds in the engine's caches then."""

    def __init__(self) -> None:
        self.told: list[Generated] = []
        self.failures = 0
        self.looked: Callable[[], Any] = lambda: None
        self.seen: Any = None

    def begin(self, request: Any, server: Any, source: Any) -> Work:
        return Work(request.rid, request.seq_len)

    def generated(self, work: Work, generated: Generated) -> None:
        work.generated = generated
        self.told.append(generated)
        self.seen = self.looked()

    def failed(self, work: Work) -> None:
        self.failures += 1


class Own:
    """Stands in for TileRT's own engine: its tokens come one by one, and it resets at the end."""

    def __init__(self) -> None:
        self.layer = Layer()
        self.gen = SimpleNamespace(decode_layer=self.layer)
        self.last_stats: dict[str, Any] = {}

    def inject(self, req: Any) -> None:
        if req.seq_len > 40:
            raise ValueError("too long")

    def supports_penalties(self) -> bool:
        return False

    def decode(
        self,
        first_token_id: int,
        max_tokens: int,
        sampling: Any,
        on_token: Any = None,
        cancel_event: Any = None,
        grammar_session: Any = None,
    ) -> list[int]:
        made = [first_token_id, 5, 6][:max_tokens]
        try:
            if sampling == "fail":
                raise RuntimeError("no")
            for token in made:
                if on_token is not None:
                    on_token(token)
        finally:
            self.layer.reset_sequence()
        self.last_stats = {"finish_reason": "length"}
        return made


def wrapped(engine: Any) -> tuple[Any, Keeper]:
    keeper = Keeper()
    made: Any = KeepingEngine(engine, SimpleNamespace(), keeper)  # type: ignore[arg-type]
    return made, keeper


@pytest.mark.parametrize("listens", [True, False])
def test_rows_of_tilerts_own_engine_are_there_when_the_keeper_hears_of_the_end(
    listens: bool,
) -> None:
    own = Own()
    engine, keeper = wrapped(own)
    keeper.looked = lambda: float(own.layer.caches[1][1][0, 0, 0])
    heard: list[int] = []
    engine.inject(REQUEST)
    tokens = engine.decode(4, 3, None, on_token=heard.append if listens else None)
    assert tokens == [4, 5, 6]
    assert heard == ([4, 5, 6] if listens else [])
    assert keeper.told == [Generated((4, 5, 6), "length")]  # Once.
    assert keeper.seen == 2.0
    assert float(own.layer.caches[1][1][0, 0, 0]) == 0.0
    assert engine.last_stats == {"finish_reason": "length"}
    assert engine.supports_penalties() is False
    with pytest.raises(AttributeError):
        engine.no_such_thing()


def test_a_failure_is_the_servers_to_answer_and_the_keeper_hears_of_it() -> None:
    engine, keeper = wrapped(Own())
    with pytest.raises(ValueError, match="too long"):
        engine.inject(SimpleNamespace(rid="r2", seq_len=41))
    assert keeper.failures == 1
    given = SimpleNamespace(
        inject=lambda req: None, export_rows=lambda first, last: [], decode=_fails
    )
    engine, keeper = wrapped(given)
    engine.inject(REQUEST)
    with pytest.raises(RuntimeError, match="no"):
        engine.decode(4, 3, None)
    assert (keeper.failures, keeper.told) == (1, [])


def test_an_engine_without_rows_is_told_of_all_the_same() -> None:
    def decode(first: int, most: int, sampling: Any, **options: Any) -> list[int]:
        return [first, 7]

    bare = SimpleNamespace(
        inject=lambda req: None, decode=decode, last_stats={"finish_reason": "cancelled"}
    )
    engine, keeper = wrapped(bare)
    engine.inject(REQUEST)
    assert engine.decode(4, 3, None) == [4, 7]
    assert keeper.told == [Generated((4, 7), "aborted")]


def _fails(*args: Any, **options: Any) -> list[int]:
    raise RuntimeError("no")
