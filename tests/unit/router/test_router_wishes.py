"""What a client may ask of its session's KV, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.router.support import house

from kvferry.errors import ConfigError
from kvferry_connectors.router.settings import EngineUrl, RouterSettings

AS_HEADERS = {"x-kvferry-session": "talk", "x-kvferry-retain": "90"}
AS_FIELDS = {"kvferry": {"session": "talk", "retain_s": 90}}


@pytest.mark.parametrize("asked", [{"headers": AS_HEADERS}, AS_FIELDS], ids=["headers", "fields"])
async def test_engines_hear_what_the_client_asks_for(asked: dict[str, Any]) -> None:
    async with house() as h:
        await h.chat("first", **asked)
        await h.chat("first", "answer", "second", **asked)
        for name in ("p0", "d0"):
            parts = [got.kv for got in h[name].got]
            assert [part["session"] for part in parts] == ["talk", "talk"]
            assert [part["retain_ms"] for part in parts] == [90_000, 90_000]
            assert [part["turn"] for part in parts] == [1, 2]
            assert not any("end" in part for part in parts)
            assert not any("kvferry" in got.body for got in h[name].got)


@pytest.mark.parametrize(
    "asked", [{"headers": {"x-kvferry-end": "true"}}, {"kvferry": {"end": True}}]
)
async def test_the_last_turn_of_a_session_is_told_and_its_name_begins_anew(
    asked: dict[str, Any],
) -> None:
    async with house() as h:
        named = {"x-kvferry-session": "talk"}
        await h.chat("first", headers=named)
        headers = {**named, **asked.pop("headers", {})}
        await h.chat("first", "answer", "last", headers=headers, **asked)
        assert [got.kv.get("end") for got in h["d0"].got] == [None, True]
        assert [got.kv.get("end") for got in h["p0"].got] == [None, True]
        await h.chat("something else", headers=named)
        assert h["d0"].got[-1].kv["turn"] == 1
        assert "hint" not in h["p0"].got[-1].kv


async def test_without_a_wish_nothing_is_asked_of_the_engines() -> None:
    async with house() as h:
        await h.chat("first")
        assert h["d0"].got[0].kv.keys() >= {"id", "session", "turn"}
        assert not h["d0"].got[0].kv.keys() & {"retain_ms", "end"}


async def test_one_tenant_cannot_name_another_one_s_session() -> None:
    async with house() as h:
        for key in ("a", "b"):
            headers = {"authorization": f"Bearer {key}", "x-kvferry-end": "true"}
            await h.chat("hello", headers={**headers, "x-kvferry-session": "talk"})
        first, second = (got.kv["session"] for got in h["d0"].got)
        assert first != second
        assert first.startswith("talk")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"kvferry": 5}, '"kvferry" must be an object'),
        ({"kvferry": {"retain": 5}}, '"kvferry.retain" is unknown; known are session, retain_s'),
        ({"kvferry": {"retain_s": 601}}, "at most 600 (the router's --retain-max-s)"),
        ({"kvferry": {"retain_s": 0}}, '"kvferry.retain_s" is 0'),
        ({"kvferry": {"retain_s": True}}, '"kvferry.retain_s" is True'),
        ({"kvferry": {"retain_s": "90"}}, "\"kvferry.retain_s\" is '90'"),
        ({"headers": {"x-kvferry-retain": "soon"}}, "header x-kvferry-retain is 'soon'"),
        ({"headers": {"x-kvferry-retain": "nan"}}, "header x-kvferry-retain is nan"),
        ({"headers": {"x-kvferry-end": "yes"}}, "header x-kvferry-end is 'yes'"),
        ({"kvferry": {"end": 1}}, '"kvferry.end" is 1'),
        ({"kvferry": {"session": 7}}, '"kvferry.session" must be a string'),
        ({"kvferry": {"session": "s" * 129}}, "longer than 128 characters"),
        ({"kvferry": {"retain_s": 5, "end": True}}, "ask for one of the two"),
    ],
)
async def test_a_wrong_wish_is_refused_by_name(asked: dict[str, Any], told: str) -> None:
    async with house() as h:
        answer = await h.chat("hello", **asked)
        assert answer.status_code == 400
        assert told in answer.json()["error"]["message"]
        assert not h["p0"].got
        assert (await h.chat("hello")).status_code == 200


async def test_a_router_may_retain_nothing_on_request() -> None:
    async with house(retain_max_s=0.0) as h:
        answer = await h.chat("hello", kvferry={"retain_s": 1})
        assert answer.status_code == 400
        assert "--retain-max-s is 0" in answer.json()["error"]["message"]


def test_the_bound_itself_has_bounds() -> None:
    engines = {"prefill": (EngineUrl("p0", "u"),), "decode": (EngineUrl("d0", "u"),)}
    with pytest.raises(ConfigError, match="use 0 to 86400 seconds"):
        RouterSettings(**engines, retain_max_s=1e9)  # type: ignore[arg-type]
