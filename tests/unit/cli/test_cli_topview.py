"""How a frame of `kvferry top` looks: it fits a small terminal, and steers none."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console
from tests.unit.cli.support import converse

from kvferry.cli.topview import draw
from kvferry.ledger.memory import MemoryLog
from kvferry.replay.live.follow import Live
from kvferry.replay.live.frame import frame
from kvferry.replay.live.rows import Around, Frame, Moving, Replica


async def small() -> Frame:
    log = MemoryLog()
    await converse(log)
    live = Live(log)
    await live.begin()
    return frame(live.state, live.recent, Around(now_ms=live.folded_ms))


def drawn(shown: Frame, **how: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(draw(shown, **how))  # type: ignore[arg-type]
    return out.getvalue()


async def test_a_frame_fits_into_80_columns() -> None:
    text = drawn(await small(), keys="q quits, p pauses the screen")
    assert "…" not in text
    assert "42.7 %" in text
    assert "nothing_held 1" in text
    assert "d0>p0/tcp" in text
    assert "PAUSED" not in text
    assert "PAUSED" in drawn(await small(), paused=True)


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
