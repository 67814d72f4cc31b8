"""Carries out one read: a conversation with its source, a flow of blocks, and the fence."""

from __future__ import annotations

import logging
import time

from kvferry.errors import BackendError
from kvferry_backends.control.calls import Call, Calls
from kvferry_backends.nixl.agent import AgentError, Transfer
from kvferry_backends.nixl.cost import Mode, choose
from kvferry_backends.nixl.direct import DirectFlow
from kvferry_backends.nixl.job import POLL_S, Flow, Job
from kvferry_backends.nixl.links import Known, Link, Links
from kvferry_backends.nixl.options import NixlOptions
from kvferry_backends.nixl.packed import PackedFlow
from kvferry_backends.nixl.rings import RingLoan
from kvferry_backends.nixl.wire import Ask, Begin, decode, encode
from kvferry_backends.tcp.stream import StreamError

SETTLE_S = 0.2
"""How long a read that has to stop waits for what it has under way, before its agent is ended."""

_log = logging.getLogger("kvferry.backends.nixl")


class _NotFenced(Exception):
    """Blocks of the read may still change."""


class Reader:
    """What one thread does for one read."""

    def __init__(self, job: Job, links: Links, calls: Calls, options: NixlOptions) -> None:
        self._job = job
        self._links = links
        self._calls = calls
        self._options = options

    def run(self) -> None:
        """Bring the blocks and tell the read how it went. Never raises."""
        job = self._job
        where = f"{job.peer.address}: "
        try:
            job.pool.enter()
            self._bring()
        except _NotFenced as error:
            # No outcome: whoever waits has to keep the target blocks in quarantine.
            _log.critical("transfer %s: %s", job.request.transfer, error)
        except (StreamError, AgentError) as error:
            job.read.part_failed(error.error, where + str(error))
        except BackendError as error:
            job.read.part_failed("error", where + str(error))
        except Exception as error:
            _log.exception("transfer %s failed in a way not foreseen", job.request.transfer)
            job.read.part_failed("error", where + repr(error))
        else:
            job.read.part_done(job.byte_count)

    def _bring(self) -> None:
        job = self._job
        job.check()
        known = self._links.know(job.peer.instance)
        try:
            call = self._calls.begin(job.peer.address, job.peer.instance, job.deadline)
            try:
                job.read.attach(call)
                self._with_ring(known, call)
            finally:
                call.close()
        finally:
            self._links.give(known)

    def _with_ring(self, known: Known, call: Call) -> None:
        rings = self._job.pool.rings
        size = self._job.chunk_blocks() if self._mode(known) == "packed" else 0
        loan = None
        if rings is not None and size:
            self._links.sweep()
            loan = rings.take()
        try:
            self._converse(known, call, loan, size)
        finally:
            if loan is not None:
                loan.give_back()

    def _mode(self, known: Known) -> Mode:
        size = self._job.chunk_blocks()
        if not size:
            return "direct"
        if self._options.mode != "auto":
            return self._options.mode
        return choose(
            known.costs,
            descriptors=self._job.descriptors,
            chunks=-(-len(self._job.targets) // size),
            byte_count=self._job.byte_count,
        )

    def _converse(self, known: Known, call: Call, loan: RingLoan | None, size: int) -> None:
        request = self._job.request
        call.open(
            transfer=request.transfer,
            grant=request.grant,
            blocks=request.source_blocks,
            body=encode(Ask(loan is not None, size)),
        )
        begin = decode(call.receive())
        if not isinstance(begin, Begin):
            raise BackendError(f"the source begins with {type(begin).__name__}")
        # Only now, for to meet a peer that is dead or frozen would end worse, or not at all.
        link = self._links.link(known, self._job.peer, self._job.theirs)
        began_s = time.monotonic()
        flow = self._flow(link, call, begin, loan, size)
        try:
            self._run_fenced(known, link, flow)
        finally:
            flow.leave()
        took_s = time.monotonic() - began_s
        call.finish()
        if link.warm:
            carried: Mode = "packed" if begin.packed else "direct"
            self._links.learn(known, carried, flow.pieces, self._job.byte_count, took_s)
        link.warm = True

    def _flow(self, link: Link, call: Call, begin: Begin, loan: RingLoan | None, size: int) -> Flow:
        if not begin.packed:
            return DirectFlow(self._job, link, call)
        if loan is None:
            raise BackendError("the source packs although nobody asked for it")
        return PackedFlow(self._job, link, call, begin, loan, size)

    def _run_fenced(self, known: Known, link: Link, flow: Flow) -> None:
        """Run the flow; nothing of it can write into a block after the return, however it went.

        Raises:
            _NotFenced: that could not be reached.
        """
        try:
            flow.run()
        except AgentError:
            # Part of what failed may be under way all the same.
            self._retire(known, link)
            raise
        finally:
            left = [one for one in flow.transfers if not one.done]
            if left and flow.loan is not None:
                self._links.park(link, left, flow.loan.handed_over())
            elif left and not self._settled(link, left):
                self._retire(known, link)

    def _retire(self, known: Known, link: Link) -> None:
        job = self._job
        _log.warning(
            "transfer %s: NIXL cannot cancel a read; ending the agent that reads from %s",
            job.request.transfer,
            job.peer.address,
        )
        try:
            self._links.retire(known, link)
        except BackendError as error:
            raise _NotFenced(str(error)) from error

    def _settled(self, link: Link, left: list[Transfer]) -> bool:
        """Whether everything ended well within :data:`SETTLE_S`."""
        until = time.monotonic() + SETTLE_S
        try:
            for one in left:
                while not link.agent.ended(one):
                    if time.monotonic() >= until:
                        return False
                    time.sleep(POLL_S)
        except AgentError as error:
            _log.debug("transfer %s has ended badly: %s", self._job.request.transfer, error)
            return False
        return True
