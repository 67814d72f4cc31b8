"""The connector's options are checked by name when the engine starts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvferry.errors import ConfigError
from kvferry_connectors.vllm.options import Options, node_name, parse


def test_defaults_stand_alone() -> None:
    assert parse(None) == parse({}) == Options()
    assert parse({"host": "10.0.0.7"}).advertised == "10.0.0.7"
    assert parse({"host": "0.0.0.0", "advertise_host": "p0"}).advertised == "p0"


def test_an_unknown_option_is_named_with_its_neighbour() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'nats_ulr'; did you mean 'nats_url'\?"):
        parse({"nats_ulr": "nats://127.0.0.1:4222"})
    with pytest.raises(ConfigError, match=r"unknown option 'zzz' Known: advertise_host, backend"):
        parse({"zzz": 1})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("verify", "ful", "verify='ful': use one of off, sample, full"),
        ("verify", 3, r"Expected `str`, got `int` - at `$.verify`"),
        ("lease_budget", 0.95, "lease_budget=0.95: a share of the pool between 0 and 0.9"),
        ("lease_budget", -0.1, "lease_budget=-0.1"),
        ("free_watermark", 2, "free_watermark=2.0"),
        ("plan_deadline_ms", 0, "plan_deadline_ms=0: must be at least 1 millisecond"),
        ("pin_ms", -5, "pin_ms=-5"),
        ("pin_timeout_ms", 0, "pin_timeout_ms=0"),
        ("transfer_timeout_ms", 0, "transfer_timeout_ms=0"),
        ("handover_timeout_ms", 0, "handover_timeout_ms=0"),
        ("handover_start", 1.5, "handover_start=1.5: a share between 0 and 1"),
        ("transfer_timeout_ms", "long", "Expected `int`, got `str`"),
        ("parent_load_failure_policy", "fail", "say 'recompute'"),
        ("backends", "tcp", "Expected `array`, got `str`"),
        ("nats_credentials", {"usr": "me"}, "nats_credentials: unknown entry 'usr'; known: user"),
        ("nats_credentials", {"user": 1}, "Expected `str`, got `int`"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse({option: value})


@pytest.mark.parametrize("word", ["off", "sample", "full"])
def test_each_verify_word_is_taken(word: str) -> None:
    assert parse({"verify": word}).verify == word


def test_a_node_is_named_as_configured_or_after_its_host() -> None:
    assert node_name(parse({"node": "p0"}), "abc") == "p0"


def test_two_engines_of_a_host_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "gpu_7.cluster.local")
    assert node_name(Options(), "1234-5678-9abc") == "gpu-7-123456"
    assert node_name(Options(), "ffff-5678-9abc") == "gpu-7-ffff56"
