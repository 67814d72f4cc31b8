"""The node's life in the ledger: it joins with the first prompt that says of which space it is."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable

from kvferry.core.events import PinEnded, Retained
from kvferry.core.retention_settings import AS_STARTED, RetentionSettings
from kvferry.errors import BackendError, ConfigError
from kvferry.node.agent.agent import NodeAgent
from kvferry.node.agent.credentials import settings_from
from kvferry.node.export.table import ExportTable
from kvferry.node.outbox.outbox import Outbox
from kvferry_connectors.tilert.node.hashing import check_scheme
from kvferry_connectors.tilert.node.member import Member
from kvferry_connectors.tilert.node.received import form_of
from kvferry_connectors.tilert.node.settings import NodeOptions
from kvferry_connectors.tilert.node.tier import Draft
from kvferry_connectors.tilert.node.truth import NodeTruth
from kvferry_connectors.tilert.origin import Origin, OriginRefused
from kvferry_connectors.vllm.book import Book
from kvferry_connectors.vllm.offers import Out
from kvferry_connectors.vllm.space import space_id

ON, PAUSED = "on", "paused"

log = logging.getLogger("kvferry.tilert.node")


class Membership:
    """The node's life in the ledger, and its membership once there is one.

    Attributes:
        on_withdraw: called on the agent's thread with the reason when nothing may be kept any more.
        on_change: called on any thread when :meth:`fit` may have something to do.
    """

    def __init__(self, options: NodeOptions, key: bytes) -> None:
        """
        Raises:
            ConfigError: the node's name or a credential cannot be used.
        """
        self._options = options
        self._key = key
        self._incarnation = secrets.token_hex(8)
        self._book: Book | None = None
        self.outbox = Outbox(translate=self._translate)
        self._exports = ExportTable(self._incarnation, on_pin_ended=self._pin_ended)
        self._mode = ON
        self._settings = AS_STARTED
        """What an operator has set of how this node keeps."""
        self.on_withdraw: Callable[[str], object] = lambda reason: None
        self.on_change: Callable[[], object] = lambda: None
        self.member: Member | None = None
        settings = settings_from(
            options.nats_url,
            options.node,
            options.nats_credentials,
            "--nats, --node or a credential",
        )
        truth = NodeTruth(self._exports, lambda: self._book, lambda: self.member)
        self.agent = NodeAgent(
            settings,
            self.outbox,
            on_mode=self._mode_set,
            on_retention=self._retention_set,
            inventory=self._inventory,
            truth=truth,
        )
        self.agent.start()

    # --- the keeper's thread ----------------------------------------------------------------

    def join(self, origin: Origin) -> Member:
        """The membership of the origin's space; the first time it is made.

        Raises:
            OriginRefused: it cannot be, or is another one.
        """
        if self.member is None:
            self._check(origin)
            self._join(origin)
        member = self.member
        assert member is not None
        if member.space != origin.space:
            raise OriginRefused(
                "wrong_space", f"the prompt's is {origin.space}, this node's {member.space}"
            )
        if member.memory.pages != origin.pages or member.components != origin.components:
            raise OriginRefused("layout", "the space's blocks were laid out otherwise before")
        return member

    def check_mode(self) -> None:
        """
        Raises:
            OriginRefused: nothing is to be kept now.
        """
        if self._mode != ON:
            raise OriginRefused("paused", f"the node's mode is {self._mode}")
        if not self.outbox.admit():
            raise OriginRefused("outbox_full", "")

    def fit(self) -> None:
        """Keep no more than an operator lets this node keep."""
        if self.member is not None:
            share = self._settings.host_budget
            self.member.tier.allow(1.0 if share is None else share)

    def retain_s(self, asked_ms: int) -> float:
        """For how long a client's wish to have its blocks kept is granted."""
        most_ms = self._settings.retain_max_ms
        most_ms = self._options.retain_max_ms if most_ms is None else most_ms
        return min(asked_ms, most_ms) / 1000

    def drop(self, draft: Draft) -> None:
        """See :meth:`Tier.drop`."""
        if self.member is not None:
            self.member.tier.drop(draft)

    def clear(self, reason: str) -> None:
        """See :meth:`Tier.clear`."""
        if self.member is not None:
            self.member.tier.clear(reason)

    def close(self) -> None:
        """Leave the space: leases end with the process."""
        if self.member is not None:
            self.member.close()
        self._exports.close()
        self.agent.stop()

    # --- the agent's thread -----------------------------------------------------------------

    def _mode_set(self, mode: str) -> None:
        self._mode = mode
        self._exports.pause(mode != ON)
        if mode == PAUSED:
            self.on_withdraw("paused")

    def _retention_set(self, settings: RetentionSettings) -> None:
        self._settings = settings
        self.on_change()

    def _translate(self, item: object) -> Iterable[Out]:
        assert self._book is not None
        return self._book.translate(item)

    def _inventory(self) -> list[Retained]:
        return self._book.inventory() if self._book is not None else []

    # --- threads of peers' sessions ---------------------------------------------------------

    def _pin_ended(self, event: PinEnded) -> None:
        self.outbox.facts(event)
        if self.member is not None and self.member.tier.over:
            self.on_change()

    # --- inner ------------------------------------------------------------------------------

    def _check(self, origin: Origin) -> None:
        """Whether this node can be one of the origin's space, by name if not."""
        wanted = self._options.space
        if wanted and origin.space != wanted:
            raise OriginRefused(
                "wrong_space",
                f"the prompt's is {origin.space}, this node is for {wanted} (--space)",
            )
        if space_id(origin.components) != origin.space:
            raise OriginRefused("bad_origin", "its components are not those of its space")
        form_of(origin)
        check_scheme(origin)

    def _join(self, origin: Origin) -> None:
        try:
            member = Member(
                self._options, origin, self._key, self._incarnation, self._exports, self.outbox
            )
        except (ConfigError, BackendError, OSError) as error:
            log.error("this node cannot join space %s: %s", origin.space, error)
            raise OriginRefused("not_joined", str(error)) from error
        self._book = Book(origin.block_tokens, delay=1)
        self.agent.join(member.identity)
        self.member = member
        self.fit()
        log.info(
            "node %s keeps up to %d blocks of space %s, peers at %s, backends %s",
            self._options.node,
            member.identity.host_blocks,
            member.space,
            member.identity.address,
            ", ".join(member.identity.backends),
        )
