"""Snapshots of the live state, so that the next start need not fold from the beginning."""

from __future__ import annotations

import logging

from kvferry.core.commands import RecordCheckpoint
from kvferry.daemon.decisions import Decider
from kvferry.daemon.projector import Projector
from kvferry.daemon.standing import NotLeader, Standing
from kvferry.ports.log import FACTS_STREAM, LogPort, ObjectPort
from kvferry.replay.snapshots import SnapshotEntry, write_snapshot

log = logging.getLogger("kvferry.daemon")


class Checkpoints:
    """Writes snapshots while this replica leads; the others only read them."""

    def __init__(
        self,
        log_port: LogPort,
        objects: ObjectPort,
        projector: Projector,
        standing: Standing,
        decider: Decider,
        *,
        keep_max: int,
    ) -> None:
        self.last: SnapshotEntry | None = None
        self._log = log_port
        self._objects = objects
        self._projector = projector
        self._standing = standing
        self._decider = decider
        self._keep_max = keep_max
        self._covered = 0
        """Position after the checkpoint's own events: nothing new until the state is beyond it."""

    async def write(self) -> SnapshotEntry | None:
        """Store a snapshot and record it in each led space; None when there is nothing new.

        Raises:
            LedgerError: the log or the object store does not take it.
        """
        projector = self._projector
        if not self._standing.leading or not projector.loaded:
            return None
        if projector.state.position <= self._covered:
            return None
        first = (await self._log.bounds(FACTS_STREAM)).first
        entry = await write_snapshot(
            self._objects,
            projector.state,
            projector.last_stored_ms,
            keep_max=self._keep_max,
            first=first,
        )
        self.last = entry
        spaces = [name for name in projector.state.spaces if self._decider.leads(name)]
        for space in spaces:
            try:
                await self._decider.command(
                    space,
                    RecordCheckpoint(
                        space=space,
                        position=entry.position,
                        digest=entry.digest,
                        fingerprint=entry.fingerprint,
                        object=entry.object,
                    ),
                )
            except NotLeader as error:
                log.info("the checkpoint is not recorded in space %s: %s", space, error)
        self._covered = entry.position + len(spaces)
        log.info("checkpoint at %d, digest %s", entry.position, entry.digest[:16])
        return entry
