"""How often the agent looks into the outbox."""

from __future__ import annotations

from kvferry.node.agent.pace import Pace
from kvferry.node.agent.settings import NodeSettings

SETTINGS = NodeSettings(nats_url="", node="p0", poll_ms=10.0, busy_poll_ms=100.0, idle_poll_ms=50.0)


def test_a_running_engine_is_looked_at_ever_more_rarely_and_soon_again_when_it_stops() -> None:
    pace = Pace(SETTINGS)
    running = [pace.after_look(ran=True, left=False) for _ in range(8)]
    assert running[0] == 0.01
    assert running == sorted(running)
    assert running[-1] == 0.1
    stopped = [pace.after_look(ran=False, left=False) for _ in range(8)]
    assert stopped[0] == 0.01
    assert stopped == sorted(stopped)
    assert stopped[-1] == 0.05


def test_what_is_left_over_is_fetched_at_once() -> None:
    assert Pace(SETTINGS).after_look(ran=True, left=True) == 0.0
