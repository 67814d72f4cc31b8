"""How a node stands with its ledger, for operators: one word, one reason, one log line a change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from kvferry.core.retention_settings import AS_STARTED, RetentionSettings

T = TypeVar("T")

logger = logging.getLogger("kvferry.node")

STARTING, ALONE, JOINED = "starting", "alone", "joined"
DUPLICATE, STOPPED = "duplicate", "stopped"

MODES = ("on", "paused", "observe")


class AgentStatus:
    """Written by the agent's thread, read by any.

    Attributes:
        state: ``starting``, ``alone``, ``joined``, ``duplicate`` or ``stopped``.
        why: what the state comes from, in plain words.
        mode: ``on``, ``paused`` or ``observe``.

    Args:
        node: the node's name, for the log.
        on_mode: called with each new mode.
        on_retention: called with what is set of how the node keeps, whenever that changes.
    """

    def __init__(
        self,
        node: str,
        on_mode: Callable[[str], None] | None,
        on_retention: Callable[[RetentionSettings], None] | None = None,
    ) -> None:
        self.state = STARTING
        self.why = "the agent has not started"
        self.mode = "on"
        self._node = node
        self._on_mode = on_mode
        self._retention = AS_STARTED
        self._on_retention = on_retention
        self._policy_version = 0

    def alone(self, why: str) -> None:
        """There is no ledger; the engine serves without."""
        if self.state in (STARTING, JOINED):
            logger.warning(
                "node %s serves without a ledger and goes on trying: %s", self._node, why
            )
            self.state = ALONE
        if self.state == ALONE:
            self.why = why

    def without(self) -> None:
        """There is no ledger by choice."""
        self.state, self.why = ALONE, "no nats_url is set, so nothing is recorded"
        logger.info("node %s: %s", self._node, self.why)

    def joined(self, space: str, epoch: int) -> None:
        """The ledger knows us."""
        if self.state in (STARTING, ALONE):
            logger.info("node %s joined space %s, epoch %d", self._node, space, epoch)
            self.state = JOINED
        if self.state == JOINED:
            self.why = f"space {space}, epoch {epoch}"

    def duplicate(self, why: str) -> None:
        """Another process owns the name."""
        if self.state in (DUPLICATE, STOPPED):
            return
        self.state = DUPLICATE
        self.why = why or f"a later process joined as node {self._node}"
        logger.error(
            "node %s publishes nothing any more: %s. Give each engine a name of its own "
            "(option node) and restart this one.",
            self._node,
            self.why,
        )

    def stopped(self) -> None:
        """The agent ended."""
        self.state, self.why = STOPPED, "stopped"

    def policy(self, mode: str, version: int, retention: RetentionSettings = AS_STARTED) -> None:
        """A policy came; only a later version than the last one counts."""
        if version <= self._policy_version:
            return
        if mode not in MODES:
            logger.warning(
                "policy version %d asks node %s for the unknown mode %r; it stays %s. "
                "Run the same kvferry version everywhere.",
                version,
                self._node,
                mode,
                self.mode,
            )
            return
        self._policy_version = version
        if mode != self.mode:
            logger.info("node %s is %s now (policy version %d)", self._node, mode, version)
            self.mode = mode
            self._follow(self._on_mode, mode)
        if retention != self._retention:
            self._retention = retention
            said = ", ".join(f"{name}={value:g}" for name, value in retention.given().items())
            logger.info(
                "node %s keeps by %s now (policy version %d)",
                self._node,
                said or "what its engine was started with",
                version,
            )
            self._follow(self._on_retention, retention)

    def _follow(self, follow: Callable[[T], None] | None, policy: T) -> None:
        if follow is None:
            return
        try:
            follow(policy)
        except Exception:
            # The callback is the connector's; the ledger goes on whatever it does.
            logger.exception("the engine could not follow the policy %s", policy)

    def forget_policy(self) -> None:
        """The ledger does not know us: it may be another one, with versions of its own."""
        self._policy_version = -1
