"""The part of ``status`` that only the running process knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvferry.daemon.messages import Answer

if TYPE_CHECKING:
    from kvferry.daemon.coordinator import Coordinator


def live_report(coordinator: Coordinator) -> Answer:
    """Leadership, lag, plan timings, and what the nodes' heartbeats say of them."""
    projector, standing = coordinator.projector, coordinator.standing
    rival = standing.rival()
    now = time.monotonic()
    last = coordinator.checkpoints.last
    return {
        "replica": coordinator.replica,
        "leader": coordinator.replica if standing.leading else rival.replica if rival else "",
        "leading": standing.leading,
        "term": coordinator.decider.term(),
        "uptime_s": now - coordinator.started,
        "loaded": projector.loaded,
        "position": projector.state.position,
        "lag_messages": projector.lag_messages(),
        "lag_ms": projector.lag_ms(),
        "replicas": [
            {"replica": one.replica, "term": one.term, "leader": one.leader}
            for one in standing.others()
        ],
        "plans": {
            "answered": coordinator.plans.answered,
            "malformed": coordinator.plans.malformed,
            "took_us": coordinator.plans.timings_us(),
        },
        "decisions": {
            "stored": coordinator.decider.decided,
            "conflicts": coordinator.decider.conflicts,
        },
        "slots": {
            "answered": coordinator.slots.queue.answered,
            "dropped": coordinator.slots.queue.dropped,
            "malformed": coordinator.slots.malformed,
            "said": dict(coordinator.slot_timers.said),
        },
        "failures": dict(coordinator.tasks.failures),
        "checkpoint": None
        if last is None
        else {"position": last.position, "digest": last.digest, "object": last.object},
        "heard": [
            {
                "space": space,
                "node": node,
                "incarnation": life.heartbeat.incarnation,
                "ago_s": now - life.at,
                "gauges": dict(life.heartbeat.gauges),
            }
            for (space, node), life in sorted(coordinator.liveness.lives.items())
        ],
    }
