"""A pull that follows a prefill: each part is read as soon as the source has written it.

All parts are pinned under one transfer and settled by one ``done``, so that what a source
reuses meanwhile is found out as in any other pull.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.wire import Granted
from kvferry.node.pull.attempt import Attempt, Limits
from kvferry.node.pull.failure import Failed
from kvferry.node.pull.follower import REFUSED, Follower, Following
from kvferry.node.pull.jobs import PullJob
from kvferry.node.pull.links import Links

ResultT = TypeVar("ResultT")

FOLLOW_S_MAX = 600.0
"""However steadily a prefill goes on."""
WAIT_SLICE_S = 0.05
"""How soon a cancelled pull is noticed."""


class FollowAttempt(Attempt):
    """Runs one job whose ``follow`` names a prefill. ``job.deadline_s`` counts from the last part.

    Where the prefill ends early, what was written until then is used. The times of its result
    are those of all parts together, without the waiting for the prefill.
    """

    def __init__(
        self,
        job: PullJob,
        client: PeerClient,
        links: Links,
        limits: Limits,
        *,
        follower: Follower,
        cancelled: threading.Event,
        submitted_s: float,
        skip_done: bool = False,
    ) -> None:
        super().__init__(
            job,
            client,
            links,
            limits,
            cancelled=cancelled,
            submitted_s=submitted_s,
            skip_done=skip_done,
        )
        self._follower = follower

    def _bring(self) -> int:
        job = self._job
        following = self._follower.follow(
            job.address,
            job.incarnation,
            job.follow,
            job.start + len(job.target_blocks),
            self._wanted()[-1],
        )
        try:
            return self._read_parts(following)
        finally:
            self._follower.leave(following)

    def _read_parts(self, following: Following) -> int:
        """Blocks that were read, from the first on: all, or what the prefill got done."""
        wanted, have = len(self._job.target_blocks), 0
        while have < wanted:
            ready = min(self._ready(following, have), wanted)
            if ready <= have:
                break
            granted = self._timed("pin", partial(self._pin_part, have, ready))
            if granted is not None:
                self._timed("read", partial(self._reader.read, granted, have))
                have += len(granted.blocks)
            if have < ready:
                break  # Reused already; what comes after the hole is of no use.
            self._deadline_s = min(
                time.monotonic() + self._job.deadline_s, self._submitted_s + FOLLOW_S_MAX
            )
        if not have:
            reason = "unreachable" if following.lost and following.state != REFUSED else "refused"
            raise Failed("pin", reason, f"{following.state}: {following.detail or following.name}")
        return have

    def _pin_part(self, have: int, ready: int) -> Granted | None:
        """A grant for the next part; None where nothing of it is held any more."""
        try:
            return self._ask_pin(self._wanted()[have:ready], self._job.start + have)
        except Failed as failure:
            if have and failure.detail.startswith("not_held"):
                return None
            raise

    def _ready(self, following: Following, have: int) -> int:
        """Blocks of this job that are written, once they are more than ``have`` or all to come."""
        self._stage = "pin"
        start, renew_every_s = self._job.start, self._limits.pin_ms / 3000
        renew_at_s = time.monotonic() + renew_every_s
        while not following.wait_beyond(start + have, min(WAIT_SLICE_S, self._left_s())):
            if have and time.monotonic() >= renew_at_s:
                self._renew()
                renew_at_s = time.monotonic() + renew_every_s
        self._left_s()
        return following.ready - start

    def _timed(self, stage: str, act: Callable[[], ResultT]) -> ResultT:
        before_ms = self._took_ms.get(stage, 0.0)
        try:
            return super()._timed(stage, act)
        finally:
            self._took_ms[stage] += before_ms
