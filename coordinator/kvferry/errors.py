"""Every exception of kvferry.

::

    KVFerryError
      ConfigError          the caller's options are wrong; the text names the option and the cure
      LedgerError          the ledger cannot be reached or refuses
        LedgerUnavailable    no server, or it does not answer in time
        LedgerRefused        permissions, limits, a stream that is not ours
          LedgerReplaced       what was read of it is not in it any more: read it anew
        WrongLastSequence    somebody else wrote first (optimistic concurrency)
      CodecError           a message that cannot be decoded; carries what is known of it
      IllegalTransition    an event that the transition table does not allow
      PeerError            the other node is wrong or gone
        PeerUnreachable      no connection, or it broke
        PeerRefused          it answered no; ``reason`` is one of the documented words
      BackendError         a data plane failed
        BackendUnavailable   it cannot work here; the text says what is missing
      EngineUnsupported    an engine, version or model that the connector cannot serve
      SlotError            no decode slot of a TileRT node, or not any more
        SlotsBusy            all are lent; says when to ask again
        SlotsUnavailable     nobody can lend one now
        SlotLost             the lease is not ours any more: drop what the node answers
"""

from __future__ import annotations


class KVFerryError(Exception):
    """The root of all errors that kvferry raises on purpose."""


class ConfigError(KVFerryError):
    """An option is missing, unknown or out of range."""


class LedgerError(KVFerryError):
    """The ledger cannot be used."""


class LedgerUnavailable(LedgerError):
    """No server answers, or not in time."""


class LedgerRefused(LedgerError):
    """The server answered and refused."""


class LedgerReplaced(LedgerRefused):
    """The log is not the one that was read before: its store was reset or rolled back."""


class WrongLastSequence(LedgerError):
    """An append expected another last sequence of its subject."""


class CodecError(KVFerryError):
    """A message cannot be decoded."""


class IllegalTransition(KVFerryError):
    """An event does not fit the state it meets."""


class PeerError(KVFerryError):
    """Another node failed us."""


class PeerUnreachable(PeerError):
    """No connection to the peer, or it broke."""


class PeerRefused(PeerError):
    """The peer answered no.

    Attributes:
        reason: a stable word, for example ``space_mismatch`` or ``ended``.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class BackendError(KVFerryError):
    """A data plane failed."""


class BackendUnavailable(BackendError):
    """A data plane cannot work on this machine."""


class EngineUnsupported(KVFerryError):
    """The engine, its version or its model is not supported."""


class SlotError(KVFerryError):
    """A decode slot cannot be had or kept."""


class SlotsBusy(SlotError):
    """All nodes that were asked for are lent.

    Attributes:
        retry_after_s: when one may become free, from how long leases last.
    """

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class SlotsUnavailable(SlotError):
    """Nobody can lend a slot now.

    Attributes:
        reason: ``no_coordinator``, ``not_registered``, ``drained``, ``unsure`` (to be seen idle
            first) or ``in_use`` (by a request of that name).
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class SlotLost(SlotError):
    """The coordinator does not know this lease as ours."""
