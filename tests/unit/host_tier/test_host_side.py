"""A rank's host tier as the options ask for it, or why there is none."""

from __future__ import annotations

import logging

import pytest
from tests.contract.pools import Pool

from kvferry.errors import ConfigError
from kvferry_backends.registry import create
from kvferry_connectors.vllm.host_side import HostSide
from kvferry_connectors.vllm.options import parse

BLOCK_BYTES = 4096
KEY = b"k" * 32


def side(size: int, ranks: int = 1, **options: object) -> HostSide:
    pool = Pool(8, [BLOCK_BYTES])
    backend = create("tcp", {})
    backend.register(pool.regions, lambda transfer, grant, blocks: False)
    try:
        given = parse({"host_tier_bytes": size, **options})
        return HostSide(given, pool.regions, [backend], KEY, 0, ranks)
    finally:
        backend.close()


def test_the_ranks_share_the_bytes_and_each_serves_its_own() -> None:
    made = side(10 * BLOCK_BYTES, ranks=2)
    assert (made.slots, made.problem) == (5, "")
    assert list(made.described) == ["tcp"]
    made.close()


def test_room_for_no_block_is_named_with_its_cure() -> None:
    made = side(BLOCK_BYTES - 1)
    assert made.slots == 0
    assert "host_tier_bytes=4095 does not hold one block of 4096 bytes" in made.problem
    made.close()


def test_a_data_plane_with_a_port_of_its_own_serves_only_the_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        made = side(BLOCK_BYTES, backend_options={"tcp": {"listen_port": 7100}})
    assert made.described == {}
    assert "leave listen_port and advertise out" in caplog.text
    made.close()


@pytest.mark.parametrize(("option", "value"), [("host_tier_bytes", -1), ("host_copy_mb_per_s", 0)])
def test_a_wrong_option_is_refused_by_name(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option):
        parse({option: value})
