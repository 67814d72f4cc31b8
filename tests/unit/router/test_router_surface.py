"""Health, metrics, models, errors and options."""

from __future__ import annotations

import pytest
from tests.unit.router.support import house, until

from kvferry.errors import ConfigError
from kvferry_connectors.router.settings import EngineUrl, RouterSettings, parse_engines


async def test_health_names_who_is_down() -> None:
    async with house(decode=2, dead=("d1",)) as h:
        answer = await h.client.get("/health")
        assert answer.status_code == 200
        assert answer.json()["status"] == "degraded"
        assert answer.json()["down"] == ["d1"]
        assert "unreachable" in answer.json()["engines"]["decode"]["d1"]["why"]
        await h.revive("d1")
        await until(lambda: all(e.up for e in h.router.decode.engines))
        assert (await h.client.get("/health")).json()["status"] == "ok"


async def test_health_is_503_without_decode_and_follows_an_engines_own_word() -> None:
    async with house() as h:
        h["d0"].healthy = False
        await until(lambda: not h.router.decode.any_up())
        answer = await h.client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["engines"]["decode"]["d0"]["why"] == "/health answered 503"


async def test_metrics_count_turns_reuse_and_failures() -> None:
    async with house() as h:
        h["p0"].report = {"local": 1, "pulled": 20, "computed": 3, "miss": "diverged@21"}
        await h.ask()
        h["p0"].status = 500
        await h.ask()
        text = (await h.client.get("/metrics")).text
        for line in (
            'kvferry_router_turns_total{outcome="ok"} 2',
            'kvferry_router_prompt_tokens_total{source="pulled"} 20',
            'kvferry_router_misses_total{why="diverged"} 1',
            'kvferry_router_misses_total{why="prefill_down"} 1',
            'kvferry_router_engine_failures_total{engine="p0"} 1',
            'kvferry_router_engine_up{engine="d0"} 1',
            "kvferry_router_remembered_turns 1",
        ):
            assert line in text.splitlines()


async def test_models_come_from_an_engine_that_is_up() -> None:
    async with house(decode=2, dead=("d0",)) as h:
        answer = await h.client.get("/v1/models")
        assert answer.json()["data"][0]["owned_by"] == "d1"
        await h.kill("d1")
        answer = await h.client.get("/v1/models")
        assert answer.json()["data"][0]["owned_by"] == "p0"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/embeddings", 404), ("GET", "/v1/completions", 405), ("POST", "/health", 405)],
)
async def test_other_paths_answer_in_openai_shape(method: str, path: str, status: int) -> None:
    async with house() as h:
        answer = await h.client.request(method, path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b"", b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_400(content: bytes) -> None:
    async with house() as h:
        answer = await h.client.post("/v1/chat/completions", content=content)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert not h["p0"].got


async def test_a_body_over_the_bound_is_413() -> None:
    async with house(body_bytes_max=1000) as h:
        assert (await h.ask("x" * 2000)).status_code == 413
        assert (await h.ask("x" * 100)).status_code == 200


async def test_load_moves_a_session_away_from_a_busy_engine() -> None:
    async with house(decode=2, affinity_slack=2) as h:
        await h.ask("hello")
        first = next(e for e in h.router.decode.engines if h[e.name].got)
        first.in_flight += 2
        await h.ask("hello again")
        assert len(h[first.name].got) == 2
        first.in_flight += 1
        await h.ask("hello again and again")
        assert len(h[first.name].got) == 2
        first.in_flight -= 3


def test_engines_are_named_or_numbered() -> None:
    engines = parse_engines(["http://a:1/v1/", "left=https://b:2"], "d")
    assert engines == (EngineUrl("d0", "http://a:1"), EngineUrl("left", "https://b:2"))


@pytest.mark.parametrize("value", ["a:1", "x=", "bad name=http://a:1", "ftp://a", "a.b=http://a:1"])
def test_a_wrong_engine_is_named(value: str) -> None:
    with pytest.raises(ConfigError):
        parse_engines([value], "p")


def test_wrong_settings_are_named() -> None:
    one, two = (EngineUrl("x", "http://a:1"),), (EngineUrl("y", "http://a:2"),)
    with pytest.raises(ConfigError, match="--prefill"):
        RouterSettings(prefill=(), decode=one)
    with pytest.raises(ConfigError, match="called 'x'"):
        RouterSettings(prefill=one, decode=one)
    with pytest.raises(ConfigError, match="attempts_max"):
        RouterSettings(prefill=one, decode=two, attempts_max=0)
