"""Block hashes made without vLLM are vLLM's."""

from __future__ import annotations

import pytest
from tests.unit.tilert_node.origins import ROOT, make

from kvferry_connectors.tilert.node.hashing import chain_hashes, check_scheme
from kvferry_connectors.tilert.origin import Origin, OriginRefused


def by_vllm(algorithm: str, parent: bytes, tokens: list[int]) -> bytes:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import hash_block_tokens

    return bytes(hash_block_tokens(get_hash_fn_by_name(algorithm), parent, tokens, None))


def in_blocks(size: int, algorithm: str, **changes: object) -> Origin:
    probe = by_vllm(algorithm, ROOT, list(range(size)))
    return make(
        block_tokens=size,
        algorithm=algorithm,
        components={"model": "m@1", "hash_scheme": f"{algorithm}:{probe.hex()[:16]}"},
        **changes,
    )


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_they_go_on_from_the_prompts(algorithm: str) -> None:
    parent = by_vllm(algorithm, ROOT, list(range(16)))
    origin = in_blocks(16, algorithm, tail=(16, 17), hashes=parent, tokens=18)
    check_scheme(origin)
    generated = [100_000 + n for n in range(31)]
    first = by_vllm(algorithm, parent, [16, 17, *generated[:14]])
    second = by_vllm(algorithm, first, generated[14:30])
    assert chain_hashes(origin, generated) == [first, second]
    assert chain_hashes(origin, generated[:13]) == []


def test_a_prompt_without_a_full_block_begins_at_the_root() -> None:
    origin = in_blocks(16, "sha256_cbor", tail=(1, 2), hashes=b"", tokens=2)
    tokens = list(range(50, 64))
    assert chain_hashes(origin, tokens) == [by_vllm("sha256_cbor", ROOT, [1, 2, *tokens])]


def test_another_seed_or_function_is_refused_by_name() -> None:
    for origin in (
        in_blocks(16, "sha256_cbor", root=b"\x00" * 32),
        make(algorithm="xxhash"),
    ):
        with pytest.raises(OriginRefused) as refused:
            check_scheme(origin)
        assert refused.value.reason == "hash_scheme"
