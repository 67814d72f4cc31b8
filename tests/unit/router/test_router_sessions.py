"""Conversations stay with their D, find their hint, and never meet another tenant's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.router.support import House, house

from kvferry_connectors.router.bodies import Kind
from kvferry_connectors.router.prompts import UNIT_BYTES, chain_of, scope_of
from kvferry_connectors.router.sessions import Known, SessionBook


def served_by(h: House, number: int) -> str:
    """The D that answered the ``number``-th turn, found by P's hint in its request."""
    hint = h["p0"].hint(number)
    return next(n for n in h.engines if any(g.kv.get("hint") == hint for g in h[n].got))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_growing_chat_keeps_its_decode_engine_session_and_hint(stream: bool) -> None:
    async with house(decode=3) as h:
        await h.chat("first", stream=stream)
        await h.chat("other", stream=stream)
        home = served_by(h, 1)
        assert served_by(h, 2) != home
        texts = ["first"]
        for turn in range(3, 6):
            texts += ["answer", f"question {turn}"]
            await h.chat(*texts, stream=stream)
            assert served_by(h, turn) == home
            assert h["p0"].got[-1].kv["hint"]["secret"] == f"{home}#{len(h[home].got) - 1}"
        sessions = [got.kv["session"] for got in h["p0"].got]
        assert len({sessions[0], *sessions[2:]}) == 1
        assert sessions[1] != sessions[0]


@pytest.mark.parametrize("length", [3, UNIT_BYTES - 1, UNIT_BYTES, 5 * UNIT_BYTES + 7])
async def test_a_growing_text_is_recognised_at_any_length(length: int) -> None:
    async with house(decode=2) as h:
        await h.ask("a" * length)
        await h.ask("a" * length + " and the answer")
        assert h["p0"].got[1].kv["hint"] == h[served_by(h, 1)].hint(1)
        await h.ask("b" * length + " and the answer")
        assert "hint" not in h["p0"].got[2].kv


async def test_token_ids_are_recognised_and_digits_do_not_run_together() -> None:
    async with house() as h:
        for prompt in ([1, 2], [1, 23], [1, 2, 3]):
            await h.client.post("/v1/completions", json={"prompt": prompt})
        assert "hint" not in h["p0"].got[1].kv
        assert h["p0"].got[2].kv["hint"] == h["d0"].hint(1)


async def test_forks_use_one_hint_twice_and_then_their_own() -> None:
    async with house() as h:
        await h.chat("root")
        await h.chat("root", "a", "left")
        await h.chat("root", "a", "right")
        await h.chat("root", "a", "left", "b", "more")
        hints = [got.kv.get("hint") for got in h["p0"].got]
        d = h["d0"]
        assert hints == [None, d.hint(1), d.hint(1), d.hint(2)]


async def test_an_edited_history_falls_back_to_the_last_shared_turn() -> None:
    async with house() as h:
        await h.chat("q1")
        await h.chat("q1", "thinking... a1", "q2")
        await h.chat("q1", "a1", "q2", "a2", "q3")
        assert h["p0"].got[2].kv["hint"] == h["d0"].hint(1)


async def test_two_conversations_with_one_beginning_stay_apart() -> None:
    system = {"role": "system", "content": "be brief"}

    async def ask(h: House, text: str) -> None:
        body = {"messages": [system, {"role": "user", "content": text}]}
        await h.client.post("/v1/chat/completions", json=body)

    async with house(decode=2) as h:
        await ask(h, "one")
        await ask(h, "two")
        first, second = h["p0"].got
        assert "hint" not in second.kv
        assert first.kv["session"] != second.kv["session"]


TENANTS: list[dict[str, Any]] = [
    {"headers": {"authorization": "Bearer b"}},
    {"headers": {}},
    {"headers": {"authorization": "Bearer a"}, "cache_salt": "s"},
]


@pytest.mark.parametrize("other", TENANTS)
@pytest.mark.parametrize("session", ["", "same"])
async def test_tenants_never_meet(other: dict[str, Any], session: str) -> None:
    extra = {"session_id": session} if session else {}
    async with house() as h:
        own: dict[str, Any] = {"headers": {"authorization": "Bearer a"}}
        await h.ask("shared prompt", **own, **extra)
        await h.ask("shared prompt, longer", **other, **extra)
        # Negative control: the same tenant does find the hint.
        await h.ask("shared prompt, longer", **own, **extra)
        mine, theirs, again = h["p0"].got
        assert "hint" not in theirs.kv
        assert theirs.kv["session"] != mine.kv["session"]
        assert again.kv["hint"] == h["d0"].hint(1)
        assert again.kv["session"] == mine.kv["session"]
        assert "Bearer" not in json.dumps(mine.kv)


async def test_an_explicit_session_wins_over_content() -> None:
    async with house(decode=2) as h:
        await h.ask("prompt", headers={"x-kvferry-session": "one"})
        await h.ask("prompt", headers={"x-kvferry-session": "two"})
        await h.ask("something else", headers={"x-kvferry-session": "one"})
        await h.ask("something else", session_id="two")
        kvs = [got.kv for got in h["p0"].got]
        assert [kv["session"] for kv in kvs] == ["one", "two", "one", "two"]
        assert "hint" not in kvs[1]
        assert kvs[2]["hint"] == h[served_by(h, 1)].hint(1)
        assert served_by(h, 3) == served_by(h, 1)
        assert served_by(h, 4) == served_by(h, 2)
        assert h["p0"].got[3].body["session_id"] == "two"


async def test_a_stream_without_params_leaves_no_stale_hint() -> None:
    async with house() as h:
        await h.chat("q1")
        h["d0"].with_params = False
        await h.chat("q1", "a1", "q2", stream=True)
        await h.chat("q1", "a1", "q2", "a2", "q3")
        kvs = [got.kv for got in h["p0"].got]
        assert "hint" not in kvs[2]
        assert kvs[2]["session"] == kvs[0]["session"]


def known(name: str) -> Known:
    return Known(name, "p0", "d0", None)


def test_the_book_is_bounded_and_forgets_the_least_used() -> None:
    book = SessionBook(turns_max=3)
    scope = scope_of("t")
    chains = [chain_of(Kind.COMPLETIONS, {"prompt": f"prompt {i}"}, scope) for i in range(4)]
    for index, chain in enumerate(chains[:3]):
        book.remember(chain, None, known(str(index)))
    assert book.find(chains[0], None) == known("0")
    book.remember(chains[3], None, known("3"))
    assert len(book) == 3
    assert book.find(chains[1], None) is None
    assert [book.find(c, None) for c in (chains[0], chains[2], chains[3])] == [
        known("0"),
        known("2"),
        known("3"),
    ]
    for index in range(20):
        chain = chain_of(Kind.COMPLETIONS, {"prompt": f"new {index}"}, scope)
        book.remember(chain, scope_of(str(index)), known("x"))
    assert len(book) == 3
    assert len(book._lengths) <= 3
    assert len(book._named) <= 3


def test_scopes_cannot_imitate_each_other() -> None:
    assert scope_of("a", "b") != scope_of("ab", "") != scope_of("", "ab")
