"""Three requests on one prefill and one decode engine, computed by hand for each policy.

Each engine has memory for six blocks. A (blocks 1 to 3 and a rest) comes first, B (11 to 13) next,
then A goes on with two more blocks. With the rest B needs four blocks, so one of A's three must
go: the last one, block 3.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.bench_policy.small import REST, SHAPE, asks, run

A, B, A2 = [1, 2, 3], [11, 12, 13], [1, 2, 3, 4, 5]
TRACE = [asks(0, A), asks(100, B), asks(200, A2)]
SLOWER = [asks(0, A), asks(50, [21]), asks(100, B), asks(200, A2)]
"""The same, and a prompt of one block between A and B."""
PROMPTS = 512 * 11 + 3 * REST
REST_S = REST / 512


def figures(policy: str, **sizes: int) -> tuple[int, dict[str, int]]:
    """Blocks hit, and blocks recomputed by cause."""
    counted = run(policy, TRACE, hbm=6, **sizes).shared.figures
    assert counted.prompt_tokens == PROMPTS
    assert counted.hit_tokens + counted.computed_tokens == PROMPTS
    return counted.hit_tokens // 512, dict(counted.lost)


def test_an_infinite_cache_finds_all_of_the_first_turn() -> None:
    assert figures("infinite") == (3, {})


@pytest.mark.parametrize("policy", ["lru", "one-way", "leases"])
def test_without_more_memory_the_last_block_is_gone(policy: str) -> None:
    assert figures(policy) == (2, {"reused": 1})


def test_host_memory_catches_it() -> None:
    assert figures("lru-host", host=6) == (3, {})


def test_a_copy_made_in_time_catches_it() -> None:
    # After the one-block prompt A stands where the cache reuses next, and it is copied. B needs
    # two of A's blocks then.
    found = {
        policy: run(policy, SLOWER, hbm=6, host=host).shared.figures
        for policy, host in (("ours", 12), ("lru", 0))
    }
    assert (found["ours"].hit_tokens, dict(found["ours"].lost)) == (3 * 512, {})
    assert (found["lru"].hit_tokens, dict(found["lru"].lost)) == (512, {"reused": 2})


def test_a_copy_holds_no_memory_and_what_is_reused_meanwhile_is_not_kept() -> None:
    # B takes four of six blocks at once, before a copy of A is complete.
    assert figures("ours", host=6) == (2, {"reused": 1})


def test_the_oldest_leave_host_memory_first() -> None:
    assert figures("lru-host", host=1) == (3, {})
    later = [*TRACE[:2], asks(120, [21, 22, 23]), asks(200, A2)]
    counted = run("lru-host", later, hbm=6, host=1).shared.figures
    # B's rest displaced 3; the third request displaced 2, 1 and 13, of which 13 came last.
    assert (counted.hit_tokens, dict(counted.lost)) == (0, {"host_full": 3})


def test_pins_make_everybody_behind_them_wait() -> None:
    counted = run("ttl", TRACE, hbm=6).shared.figures
    # A is answered at 3 + REST_S + 1 s; until 480 s later B cannot have its four blocks on the
    # decode engine. Meanwhile B keeps its four on the prefill engine, so A's next turn waits
    # there. Then B is pinned in its turn, and A's next turn waits for that on the decode engine.
    a_expires_s = 4 + REST_S + 480
    b_expires_s = a_expires_s + 1 + 480
    assert counted.delayed == 3
    waits_s = (
        a_expires_s - (103 + REST_S),
        a_expires_s - 200,
        b_expires_s - a_expires_s - 3 - REST_S,
    )
    assert counted.stalled_s == pytest.approx(sum(waits_s), abs=0.01)
    ttft_s = (3 + REST_S + 1, a_expires_s + 1 - 100, b_expires_s + 1 - 200)
    assert sorted(counted.ttft_s) == pytest.approx(sorted(ttft_s), abs=0.01)
    assert counted.ended == {"expired": 3}
    # B took block 3 once A's pin had expired.
    assert (counted.hit_tokens, dict(counted.lost)) == (2 * 512, {"reused": 1})


def test_a_pin_that_is_read_ends() -> None:
    # The large request at 199 s takes block 2 and 3 from the first prefill engine and keeps it
    # busy, so that A's next turn goes to the second one and reads from the decode engine.
    trace = [asks(0, A), asks(100, B, 2_100), asks(199, list(range(21, 29))), asks(200, A2)]
    quick = msgspec.structs.replace(SHAPE, step_s=0.001)
    counted = run("ttl", trace, hbm=10, prefill=2, shape=quick).shared.figures
    assert counted.hit_tokens == 3 * 512
    assert counted.ended["read"] == 1
    # With its answer B needs eight blocks on the decode engine; seven are free until the read.
    assert 200 - 100 + 0.001 in [pytest.approx(one, abs=0.0005) for one in counted.ttft_s]


def test_a_pin_that_nobody_reads_lasts_for_its_time() -> None:
    counted = run("ttl", TRACE[:2], hbm=6, ttl_s=300).shared.figures
    answered_s = 3 + REST_S + 1  # A, one token.
    assert counted.stalled_s == pytest.approx(answered_s + 300 - (103 + REST_S), abs=0.01)
    assert counted.ended == {"expired": 2}


def test_nothing_comes_back_one_way() -> None:
    # With two prefill engines A's next turn goes to the idler one, which has nothing of it.
    sizes = {"hbm": 12, "prefill": 2}
    trace = [asks(0, A), asks(1, [31, 32]), asks(1.5, [41, 42]), asks(2.9, A2)]
    back = run("lru", trace, **sizes).shared
    never = run("one-way", trace, **sizes).shared
    assert back.figures.hit_tokens >= never.figures.hit_tokens
    assert not any(way.endswith(">prefill") for way in never.links.bytes)


def test_of_two_holders_one_copies_to_its_host_memory() -> None:
    both = run("lru-host", SLOWER, hbm=6, host=12).shared
    ours = run("ours", SLOWER, hbm=6, host=12).shared
    assert ours.figures.hit_tokens == both.figures.hit_tokens == 3 * 512
    # A's next turn contains A, so these are all the blocks that there are.
    assert ours.links.bytes["hbm>host"] == 9 * 512
    # B displaced two blocks of A on both engines, A's next turn then the others.
    assert both.links.bytes["hbm>host"] == 12 * 512


def test_bytes_from_prefill_to_decode_are_what_decode_lacks() -> None:
    moved = run("lru", TRACE, hbm=12).shared.links.bytes
    # A and B whole, of the next turn two blocks and the rest.
    assert moved["prefill>decode"] == (3 + 3 + 2) * 512 + 3 * REST
