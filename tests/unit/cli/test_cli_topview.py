"""How a frame of `kvferry top` looks: it fits a small terminal, and steers none."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.unit.cli.support import converse, keep_otherwise

from kvferry.cli.topview import draw
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.rows import Around, Frame, Moving, NodeRow, Replica, SpaceFrame


async def small(*, kept: bool = False) -> Frame:
    log = MemoryLog()
    await converse(log)
    if kept:
        await keep_otherwise(log)
    live = Live(log)
    await live.begin()
    return frame(live.state, live.recent, Around(now_ms=live.folded_ms))


def drawn(shown: Frame, **how: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(draw(shown, **how))  # type: ignore[arg-type]
    return out.getvalue()


def rows(text: str, begin: str) -> list[list[str]]:
    """What follows in each line that begins so; without the last column."""
    lines = [line for line in text.splitlines() if line.startswith(begin)]
    return [line.removeprefix(begin).split()[:-1] for line in lines]


def withnodes(space: SpaceFrame, nodes: tuple[NodeRow, ...]) -> SpaceFrame:
    return msgspec.structs.replace(space, nodes=nodes)


async def test_a_frame_fits_into_80_columns() -> None:
    text = drawn(await small(), keys="q quits, p pauses the screen")
    assert "…" not in text
    assert "42.7 %" in text
    assert "nothing_held 1" in text
    assert "d0>p0/tcp" in text
    assert "PAUSED" not in text
    assert "PAUSED" in drawn(await small(), paused=True)


async def test_how_nodes_keep_is_said_once_for_those_that_keep_alike() -> None:
    shown = await small()
    assert rows(drawn(shown), "each node") == [["30", "s", "10.0", "%", "4.9", "%", "600", "s"]]
    assert (shown.spaces[0].retention, shown.spaces[0].retentions) == ({}, {})
    shown = await small(kept=True)
    text = drawn(shown)
    assert "…" not in text
    assert "each node" not in text
    assert rows(text, "p0 ")[-1] == ["30", "s", "10.0", "%", "19.9", "%", "*", "600", "s"]
    assert rows(text, "d0 ")[-1] == ["no", "leases", "0.0", "%", "*", "19.9", "%", "*", "600", "s"]
    (space,) = shown.spaces
    assert space.retention == {"free_watermark": 0.2}
    assert space.retentions == {"d0": {"lease_budget": 0.0}}
    keeps = {one.node: one.keeps for one in space.nodes}
    assert keeps["d0"]["set"] == ["free_watermark", "lease_budget"]
    many = tuple(
        msgspec.structs.replace(
            space.nodes[0], node=f"n{i}", keeps={**keeps["p0"], "lease_ms": 1_000 * (i // 2 + 1)}
        )
        for i in range(20)
    )
    crowd = drawn(msgspec.structs.replace(shown, spaces=(withnodes(space, many),)))
    assert "and 12 more" in crowd
    assert rows(crowd, "n0, n1")


async def test_trouble_lag_and_remarks_are_said() -> None:
    away = Replica(replica="c2", leader=False, term=3, lag_messages=7, silent_s=9.0)
    shown = msgspec.structs.replace(
        await small(), trouble="no route", lag_messages=4, lag_ms=1_500, replicas=(away,)
    )
    text = drawn(shown, remark="warning: odd")
    assert "no route" in text
    assert "4 behind (1.5 s)" in text
    assert "c2 stands by, 7 behind, silent for 9.0 s" in text
    assert "warning: odd" in text
    assert "none is heard" in drawn(await small())


async def test_ids_of_clients_cannot_steer_the_terminal() -> None:
    shown = await small()
    (space,) = shown.spaces
    moving = Moving(
        transfer="t.1", request="\x1b[2Jgone\x07", source="d0", target="p0", backend="tcp",
        blocks=1, age_ms=5,
    )  # fmt: skip
    space = msgspec.structs.replace(space, moving=(moving,), moving_total=1)
    text = drawn(msgspec.structs.replace(shown, spaces=(space,)))
    assert "?[2Jgone?" in text
    assert "\x1b" not in text
