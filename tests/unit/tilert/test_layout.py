"""Addresses on both sides: as TileRT's documentation of its buffer says, and never overlapping."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.errors import ConfigError
from kvferry_connectors.tilert.errors import SendRefused
from kvferry_connectors.tilert.layout import Plane, Shape, Stage, Target, first_pieces, pieces
from kvferry_connectors.tilert.profiles import (
    BF16,
    FP8_DS_MLA,
    PROFILES,
    Profile,
    RowFormat,
    find,
)
from kvferry_connectors.tilert.wire import Hello

GIB = 1 << 30
TINY = Profile(name="tiny", layers=5, version=900)


def hello(**changes: object) -> Hello:
    base = Hello(
        magic="tilert-pd",
        max_seq_len=1000,
        kv_base=1 << 40,
        pe_base=2 << 40,
        ki_base=3 << 40,
    )
    return msgspec.structs.replace(base, **changes)


def shape(tokens: int, profile: Profile = TINY, form: RowFormat = FP8_DS_MLA) -> Shape:
    return Shape(profile=profile, form=form, tokens=tokens, block_tokens=64)


@pytest.mark.parametrize(
    ("name", "layers", "versions", "token_bytes"),
    [
        ("dsv32", 61, (11, 51), (48_068, 78_324)),
        ("glm5", 79, (10, 50), (62_252, 101_436)),
        ("glm5_no_mtp", 78, (1010, 1050), (61_464, 100_152)),
        ("glm5_2", 79, (12, 52), (62_252, 101_436)),
    ],
)
def test_profiles_have_the_figures_of_the_servers(
    name: str, layers: int, versions: tuple[int, int], token_bytes: tuple[int, int]
) -> None:
    profile = find(name)
    assert profile.layers == layers
    assert tuple(profile.layout_version(form) for form in (FP8_DS_MLA, BF16)) == versions
    assert tuple(profile.token_bytes(form) for form in (FP8_DS_MLA, BF16)) == token_bytes


def test_rows_are_those_of_vllm() -> None:
    assert (FP8_DS_MLA.row_bytes, BF16.row_bytes) == (656, 1152)
    assert len(PROFILES["glm5_2"].indexer_layers) == 22


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ("glm6", "dsv32, glm5"),
        ({"name": "x", "layers": 0, "version": 1}, "layers is 1"),
        ({"name": "x", "layers": 3, "version": 1, "indexer_layers": [1, 2]}, "layer 0"),
        ({"name": "x", "layers": 3, "version": 1, "indexer_layers": [0, 2, 1]}, "in order"),
        ({"name": "x", "layers": 3}, "version"),
        ({"name": "x", "layers": 3, "version": 1, "pages": 2}, "pages"),
    ],
)
def test_a_profile_that_is_none_is_refused_by_name(wanted: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        find(wanted)  # type: ignore[arg-type]


def test_the_nodes_planes_lie_where_its_server_puts_them() -> None:
    target = Target.of(hello(), shape(130))
    assert target.address(3, Plane.KV) == (1 << 40) + 3 * 1000 * 528
    assert target.address(3, Plane.PE) == (2 << 40) + 3 * 1000 * 128
    assert target.address(3, Plane.KI) == (3 << 40) + 3 * 16 * 8448  # 1000 tokens are 16 pages
    assert target.device_of(3) == 0


def test_layers_of_a_buffer_in_parts_take_turns() -> None:
    said = hello(nshards=2, kv_base=[1000, 2000], pe_base=[3000, 4000], ki_base=[5000, 6000])
    target = Target.of(said, shape(10))
    assert [target.address(n, Plane.KV) for n in (0, 1, 2)] == [1000, 2000, 1000 + 528_000]
    assert [target.address(n, Plane.KI) for n in (1, 3)] == [6000, 6000 + 16 * 8448]
    # The hello names one device only; each part is on that of its number.
    assert [target.device_of(n) for n in range(4)] == [0, 1, 0, 1]
    assert [(p.remote, p.device) for p in first_pieces(target)] == [(1000, 0), (2000, 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_base": 0},
        {"pe_base": -1},
        {"ki_base": 2**64},
        {"kv_base": [1, 2]},
        {"nshards": 2},
        {"nshards": 2, "kv_base": [1, 2], "pe_base": [1, 2], "ki_base": [1]},
    ],
)
def test_a_hello_without_a_buffer_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SendRefused, match="_base=") as refused:
        Target.of(hello(**changes), shape(10))
    assert refused.value.reason == "bad_frame"


def test_only_whole_tokens_and_pages_are_sent_of_whole_blocks() -> None:
    held = shape(130)
    assert (held.blocks, held.gathered(Plane.KV), held.sent(Plane.KV)) == (
        3,
        192 * 528,
        130 * 528,
    )
    assert held.sent(Plane.KI) == held.gathered(Plane.KI) == 3 * 8448


def test_a_model_without_an_indexer_sends_two_planes_of_blocks_of_any_size() -> None:
    plain = Profile(name="plain", layers=2, version=1, indexer=False)
    held = Shape(profile=plain, form=BF16, tokens=20, block_tokens=16)
    stage = Stage(held, range(2))
    assert stage.total_bytes == 2 * 32 * 1152
    sent = pieces(stage, 0, Target.of(hello(ki_base=0), held), [1])
    assert [piece.length for piece in sent] == [20 * 1024, 20 * 128]


lengths = st.integers(1, 1000)


@given(
    lengths,
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([FP8_DS_MLA, BF16]),
    st.integers(0, 3),
)
def test_nothing_overlaps_and_everything_is_sent_once(
    tokens: int, parts: int, processes: int, form: RowFormat, seed: int
) -> None:
    held = shape(tokens, form=form)
    plane_bytes = {
        Plane.KV: TINY.layers * 1000 * form.kv_bytes,
        Plane.PE: TINY.layers * 1000 * form.pe_bytes,
        Plane.KI: TINY.layers * 16 * 8448,
    }
    starts, at = {plane: list[int]() for plane in Plane}, GIB
    for _ in range(parts):
        for plane in Plane:
            starts[plane].append(at)
            at += plane_bytes[plane]
    bases = {f"{plane.value}_base": starts[plane] for plane in Plane}
    said = hello(nshards=parts, **(bases if parts > 1 else {k: v[0] for k, v in bases.items()}))
    target = Target.of(said, held)
    remote: list[tuple[int, int]] = []
    for process in range(processes):
        stage = Stage(held, [n for n in range(TINY.layers) if n % processes == process])
        local: list[tuple[int, int]] = []
        for piece in pieces(stage, seed * 64, target, stage.layers):
            local.append((piece.local, piece.length))
            remote.append((piece.remote, piece.length))
        assert disjoint(local)
        assert all(seed * 64 <= a and a + n <= seed * 64 + stage.total_bytes for a, n in local)
    assert disjoint(remote)
    assert all(address >= GIB and address + length <= at for address, length in remote)
    each = tokens * form.row_bytes + -(-tokens // 64) * 8448
    assert sum(length for _, length in remote) == TINY.layers * each


def disjoint(runs: list[tuple[int, int]]) -> bool:
    ordered = sorted(runs)
    return all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ordered))


def test_the_check_for_overlaps_can_fail() -> None:
    assert not disjoint([(0, 10), (9, 1)])
