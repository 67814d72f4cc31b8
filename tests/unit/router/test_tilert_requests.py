"""What the router makes of a request for TileRT, before any node hears of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.router.support import events

from kvferry.errors import ConfigError
from kvferry_connectors.router.bodies import Kind
from kvferry_connectors.router.errors import Answered
from kvferry_connectors.router.settings import EngineUrl, RouterSettings
from kvferry_connectors.router.tilert.answer import output_bound
from kvferry_connectors.router.tilert.chunks import Maker
from kvferry_connectors.router.tilert.honours import cannot
from kvferry_connectors.router.tilert.sampling import NEUTRAL, read_defaults, resolve
from kvferry_connectors.router.tilert.settings import (
    TilertSettings,
    control_address,
    parse_nodes,
)
from kvferry_connectors.router.wishes import read_wishes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def why(kind: Kind = Kind.CHAT, single: bool = True, **body: object) -> str:
    return cannot(kind, {**CHAT, **body}, single, resolve(body, NEUTRAL))


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "ignore_eos": True},
        {"max_tokens": 5, "max_completion_tokens": 6, "stream": True},
        {"stream_options": {"include_usage": True}, "user": "u", "metadata": {"a": "b"}},
        {"n": 1, "stop": [], "logprobs": False, "tools": None, "logit_bias": {}},
        {"response_format": {"type": "text"}, "tool_choice": "none", "presence_penalty": 0},
        {"seed": 3, "temperature": 0},
        {"chat_template_kwargs": {"enable_thinking": False}, "cache_salt": "s"},
        {"min_p": 0, "repetition_penalty": 1.0, "frequency_penalty": 0.0},
    ],
)
def test_what_a_node_does_as_vllm_would_is_honoured(body: dict[str, object]) -> None:
    assert why(**body) == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("best_of", 2),
        ("use_beam_search", True),
        ("seed", 3),
        ("stop", "x"),
        ("stop_token_ids", [7]),
        ("min_tokens", 4),
        ("logprobs", True),
        ("prompt_logprobs", 0),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -0.1),
        ("repetition_penalty", 1.1),
        ("min_p", 0.1),
        ("logit_bias", {"5": 1}),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [1]),
        ("structured_outputs", {"regex": "x"}),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("echo", True),
        ("top_k", 256),
        ("truncate_prompt_tokens", 5),
        ("spaces_between_special_tokens", False),
        ("what_nobody_has_thought_of", 1),
    ],
)
def test_what_it_cannot_do_is_named(name: str, value: object) -> None:
    assert why(**{name: value}).startswith(f'"{name}"')


def test_several_prompts_and_middles_are_not_for_a_node() -> None:
    assert why(Kind.COMPLETIONS, single=False).startswith('"prompt"')
    assert why(Kind.COMPLETIONS, suffix="x").startswith('"suffix"')


def test_the_models_own_defaults_count_where_a_request_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    assert read_defaults(tmp_path) == NEUTRAL
    path.write_text(json.dumps({"temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 2]}))
    defaults = read_defaults(tmp_path)
    sampling = resolve({"top_p": 0.5}, defaults)
    assert sampling.for_node() == {"temperature": 0.6, "top_p": 0.5, "top_k": 0}
    assert sampling.for_prefill() == {**NEUTRAL, "temperature": 0.6, "top_p": 0.5}
    path.write_text(json.dumps({"repetition_penalty": 1.05}))
    penalised = read_defaults(tmp_path)
    assert "1.05" in cannot(Kind.CHAT, CHAT, True, resolve({}, penalised))
    assert cannot(Kind.CHAT, CHAT, True, resolve({"repetition_penalty": 1}, penalised)) == ""
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json cannot be read"):
        read_defaults(tmp_path)


@pytest.mark.parametrize("body", [{"temperature": "hot"}, {"top_k": True}, {"ignore_eos": 1}])
def test_a_value_of_the_wrong_type_is_a_bad_request(body: dict[str, object]) -> None:
    with pytest.raises(Answered) as refused:
        resolve(body, NEUTRAL)
    assert refused.value.answer.status == 400
    assert next(iter(body)) in refused.value.answer.content.decode()


def test_how_many_tokens_a_request_may_get() -> None:
    assert output_bound(Kind.COMPLETIONS, {}) == 16
    assert output_bound(Kind.CHAT, {}) > 1_000_000
    assert output_bound(Kind.CHAT, {"max_tokens": 3, "max_completion_tokens": 4}) == 4
    assert output_bound(Kind.COMPLETIONS, {"max_tokens": 3}) == 3
    for wrong in (0, -1, 1.5, "3", True):
        with pytest.raises(Answered):
            output_bound(Kind.CHAT, {"max_tokens": wrong})


def test_wishes_name_the_pool_and_whether_native_decode_will_do() -> None:
    body: dict[str, object] = {"kvferry": {"pool": "tilert", "fallback": True}}
    wishes = read_wishes(body, {}, 600.0)
    assert (wishes.pool, wishes.fallback, "kvferry" in body) == ("tilert", True, False)
    by_header = read_wishes({}, {"x-kvferry-pool": "TileRT", "x-kvferry-fallback": "false"}, 600.0)
    assert (by_header.pool, by_header.fallback) == ("tilert", False)
    assert read_wishes({}, {}, 600.0).pool == "native"


@pytest.mark.parametrize(
    "given", [{"pool": "gpu"}, {"pool": 1}, {"pool": "tilert", "fallback": 1}, {"fallback": True}]
)
def test_a_wrong_wish_is_a_bad_request(given: dict[str, object]) -> None:
    with pytest.raises(Answered) as refused:
        read_wishes({"kvferry": given}, {}, 600.0)
    assert refused.value.answer.status == 400


def test_nodes_are_read_from_the_command_line() -> None:
    plain, full = parse_nodes(
        ["t0=http://10.0.0.7:5557", "t1=http://[fd00::1]:9,ctrl=8,profile=glm5,idle_limit_s=240"]
    )
    assert (plain.name, plain.http, plain.control) == (
        "t0",
        "http://10.0.0.7:5557",
        "10.0.0.7:5556",
    )
    assert (full.profile, full.idle_limit_ms) == ("glm5", 240_000)
    assert control_address(full) == ("fd00::1", 8)
    assert control_address(plain) == ("10.0.0.7", 5556)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("http://a:1", "begin with a name"),
        ("t0=a:1", "expected t0=http://host:port"),
        ("t0=http://a:1,ctrl=x", "ctrl=x is no number"),
        ("t0=http://a:1,ctrl=70000", "no port"),
        ("t0=http://a:1,port=5", "none of ctrl"),
        ("t0=http://a:1,idle_limit_s=0", "must be more than 0"),
    ],
)
def test_a_node_that_cannot_be_read_is_named_with_the_cure(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"--tilert.*{said}"):
        parse_nodes([value])


def test_the_pool_needs_a_tokenizer_a_ledger_and_names_of_its_own() -> None:
    nodes = parse_nodes(["t0=http://a:1"])
    with pytest.raises(ConfigError, match="--tokenizer"):
        TilertSettings(nodes=nodes, tokenizer="")
    with pytest.raises(ConfigError, match="--tilert"):
        TilertSettings(nodes=(), tokenizer="x")
    with pytest.raises(ConfigError, match="wait_max_s"):
        TilertSettings(nodes=nodes, tokenizer="x", wait_max_s=0)
    pool = TilertSettings(nodes=nodes, tokenizer="x")
    engines = {"prefill": (EngineUrl("p0", "http://b"),), "decode": (EngineUrl("d0", "http://c"),)}
    with pytest.raises(ConfigError, match="--nats"):
        RouterSettings(**engines, tilert=pool)
    named = {**engines, "decode": (EngineUrl("t0", "http://c"),)}
    with pytest.raises(ConfigError, match="two engines are called 't0'"):
        RouterSettings(**named, tilert=pool, nats_url="nats://x")
    assert RouterSettings(**engines, tilert=pool, nats_url="nats://x").tilert is pool


def test_a_streams_events_are_openais() -> None:
    maker = Maker(Kind.CHAT, "k1", "m", [1, 2], with_ids=True, with_usage=True)
    parts = events(maker.chunk("a", [7]) + maker.chunk("", [8]) + maker.end("stop"))
    first, one, two, last, usage, done = parts
    assert first["prompt_token_ids"] == [1, 2]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert one["choices"][0]["delta"] == {"content": "a"}
    assert [p["choices"][0]["token_ids"] for p in (one, two)] == [[7], [8]]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["total_tokens"] == 4
    assert usage["choices"] == []
    assert done == "[DONE]"
    assert {p["id"] for p in parts[:-1]} == {"chatcmpl-k1"}
    assert {p["object"] for p in parts[:-1]} == {"chat.completion.chunk"}
    text = Maker(Kind.COMPLETIONS, "k1", "m", [1, 2], with_ids=True)
    one, two, last, done = events(text.chunk("a", [7]) + text.chunk("b", [8]) + text.end("length"))
    assert one["choices"][0]["prompt_token_ids"] == [1, 2]
    assert "prompt_token_ids" not in two["choices"][0]
    assert last["choices"][0]["text"] == ""
