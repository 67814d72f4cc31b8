"""The space's fingerprint: what must keep two engines apart, and what must not."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry_connectors.vllm.space import (
    fingerprint,
    limits,
    scheduler_components,
    shareable,
    space_id,
    weights_name,
)

PROBE = bytes(range(32))


def config(**changes: Any) -> SimpleNamespace:
    """As much of vLLM's configuration as the fingerprint reads."""
    given: dict[str, Any] = {
        "model": "org/llama-8b",
        "revision": None,
        "dtype": "torch.bfloat16",
        "quantization": None,
        "cache_dtype": "auto",
        "block_size": 32,
        "algorithm": "sha256",
        "tp": 1,
        "pp": 1,
        "rope_theta": 10_000.0,
        "speculative": None,
        "caching": True,
        "threshold": 448,
        **changes,
    }
    hf = SimpleNamespace(rope_theta=given["rope_theta"], max_position_embeddings=8192)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=given["model"],
            revision=given["revision"],
            dtype=given["dtype"],
            quantization=given["quantization"],
            hf_config=SimpleNamespace(_commit_hash=None),
            hf_text_config=hf,
        ),
        cache_config=SimpleNamespace(
            cache_dtype=given["cache_dtype"],
            block_size=given["block_size"],
            prefix_caching_hash_algo=given["algorithm"],
            enable_prefix_caching=given["caching"],
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=given["tp"], pipeline_parallel_size=given["pp"]
        ),
        speculative_config=given["speculative"],
        scheduler_config=SimpleNamespace(
            long_prefill_token_threshold=given["threshold"], max_num_batched_tokens=512
        ),
    )


def components(probe: bytes = PROBE, model_id: str = "", **changes: Any) -> dict[str, str]:
    return scheduler_components(config(**changes), probe, model_id)


@pytest.mark.parametrize(
    ("component", "changes"),
    [
        ("model", {"model": "org/llama-70b"}),
        ("model", {"revision": "0123456789abcdef"}),
        ("dtype", {"dtype": "torch.float16"}),
        ("kv_cache_dtype", {"cache_dtype": "fp8"}),
        ("quantization", {"quantization": "awq"}),
        ("block_size", {"block_size": 64}),
        ("tensor_parallel", {"tp": 2}),
        ("pipeline_parallel", {"pp": 2}),
        ("rope", {"rope_theta": 500_000.0}),
        ("drafter", {"speculative": SimpleNamespace(method="eagle", draft_model_config=None)}),
        ("hash_scheme", {"algorithm": "sha256_cbor"}),
        ("hash_scheme", {"probe": bytes(32)}),
    ],
)
def test_each_difference_splits_the_space_under_its_own_name(
    component: str, changes: dict[str, Any]
) -> None:
    one, other = components(), components(**changes)
    assert {name for name in one if one[name] != other[name]} == {component}
    assert space_id(one) != space_id(other)


def test_equal_engines_are_of_one_space() -> None:
    assert components() == components()
    assert space_id(components()) == space_id(dict(reversed(components().items())))
    assert components(model_id="named@1", model="a/x") == components(model_id="named@1", model="/y")


def test_the_name_is_readable_and_ends_in_the_fingerprint() -> None:
    found = components(model="Org/Llama 3.1-8B_Instruct")
    assert space_id(found) == f"llama-3-1-8b-instruct-{fingerprint(found)}"
    assert space_id({"model": "???"}).startswith("model-")
    assert len(fingerprint(found)) == 12


def test_weights_of_one_shape_but_other_values_have_other_names(tmp_path: Path) -> None:
    one = tmp_path / "a" / "tiny"
    one.mkdir(parents=True)
    (one / "config.json").write_text("{}")
    weights = one / "model.safetensors"
    weights.write_bytes(bytes(200_000))
    copied = tmp_path / "b" / "tiny"
    shutil.copytree(one, copied)
    first = weights_name(str(one), None, None)
    assert first.startswith("tiny@")
    assert weights_name(str(copied), None, None) == first
    changed = bytearray(200_000)
    changed[::1000] = b"\1" * 200
    weights.write_bytes(changed)
    assert weights_name(str(one), None, None) != first
    weights.write_bytes(bytes(200_000))
    (one / "config.json").write_text('{"rope_theta": 1}')
    assert weights_name(str(one), None, None) != first


def test_a_hub_name_carries_its_commit(tmp_path: Path) -> None:
    hub = SimpleNamespace(_commit_hash="c0ffee0123456789")
    assert weights_name("org/model", None, hub) == "org/model@c0ffee012345"
    assert weights_name("org/model", "v2", None) == "org/model@v2"
    assert weights_name("org/model", None, None) == "org/model@main"


def test_good_flags_leave_no_warning() -> None:
    assert limits(config(algorithm="sha256_cbor")) == ()


def test_what_limits_sharing_is_said_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = limits(config())
    assert "cache_salt" in text
    assert text.endswith("; use --prefix-caching-hash-algo sha256_cbor on every engine")
    (text,) = limits(config(algorithm="sha256_cbor", threshold=0))
    assert text.endswith(
        "; set --long-prefill-token-threshold below --max-num-batched-tokens (512)"
    )
    assert len(limits(config(algorithm="sha256_cbor", threshold=512))) == 1
    (text,) = limits(config(algorithm="sha256_cbor", caching=False))
    assert text.endswith("; start vLLM with --enable-prefix-caching")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (text,) = limits(config(algorithm="xxhash_cbor"))
    assert "random seed" in text
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert limits(config(algorithm="xxhash_cbor")) == ()


def salted(**given: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "lora_request": None,
        "mm_features": [],
        "cache_salt": None,
        "prompt_embeds": None,
    }
    return SimpleNamespace(**{**fields, **given})


def test_requests_with_strings_in_their_hashes_stay_at_home_under_a_pickled_hash() -> None:
    assert shareable(salted(), "sha256")
    keys: list[dict[str, Any]] = [
        {"cache_salt": "a"},
        {"lora_request": object()},
        {"mm_features": [1]},
        {"prompt_embeds": b"x"},
    ]
    for key in keys:
        assert not shareable(salted(**key), "sha256")
        assert shareable(salted(**key), "sha256_cbor")
