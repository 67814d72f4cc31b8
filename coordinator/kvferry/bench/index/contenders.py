"""The indexes that are measured, each behind the same few methods."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from kvferry.bench.index.load import SAMPLE_BLOCKS
from kvferry.bench.index.reports import LedgerReports, Report, RouterReports, sampled
from kvferry.core.events import Evicted, Retained
from kvferry.core.leases import CACHE
from kvferry.errors import ConfigError
from kvferry.ids import unpack_short
from kvferry.index.answer import Held
from kvferry.index.residency import Residency

OURS, OURS_EVERY_BLOCK, DYNAMO = "ours", "ours_every_block", "dynamo"
PEERS = (DYNAMO,)
STRIDES = {OURS: SAMPLE_BLOCKS, OURS_EVERY_BLOCK: 1}
"""Blocks between two sampled hashes."""
CURE = "install it with: pip install 'kvferry[bench]'"

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Contender(Protocol[Question, Answer]):
    """An index. :meth:`apply` and :meth:`ask` are timed, nothing else."""

    def apply(self, reports: Sequence[Report]) -> None:
        """Take in events, from their bytes on."""

    def question(self, hashes: bytes) -> Question:
        """A chain's short hashes in the form in which they are asked for."""

    def ask(self, question: Question) -> Answer:
        """The longest prefix on every node."""

    def blocks(self, answer: Answer) -> int:
        """Blocks of an answer, summed over the nodes."""


class _Offer(msgspec.Struct, gc=False):
    """What the index sees of an offer; :class:`kvferry.core.state.OfferState` has it and more."""

    node: str
    hashes: bytes
    tier: str = CACHE
    base: int = 0


class Ours:
    """:class:`kvferry.index.residency.Residency` with a hash for every ``stride`` blocks."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._residency = Residency()
        self._retained = msgspec.msgpack.Decoder(Retained)
        self._evicted = msgspec.msgpack.Decoder(Evicted)

    def apply(self, reports: Sequence[Report]) -> None:
        """See :class:`Contender`."""
        residency, stride = self._residency, self._stride
        retained, evicted = self._retained.decode, self._evicted.decode
        for node, data, left in reports:
            if left is None:
                kept = retained(data)
                residency.put(kept.offer, _Offer(f"n{node}", kept.hashes), stride)
            elif left:
                residency.put(evicted(data).offer, _Offer(f"n{node}", left), stride)
            else:
                residency.drop(evicted(data).offer)

    def question(self, hashes: bytes) -> bytes:
        """See :class:`Contender`."""
        return sampled(hashes, self._stride)

    def ask(self, question: bytes) -> list[Held]:
        """See :class:`Contender`."""
        return self._residency.holders(question)

    def blocks(self, answer: list[Held]) -> int:
        """See :class:`Contender`."""
        return sum(held.samples for held in answer) * self._stride


class Dynamo:
    """Dynamo's ``RadixTree`` through its Python binding."""

    def __init__(self) -> None:
        self._tree: Any = _binding().RadixTree()

    def apply(self, reports: Sequence[Report]) -> None:
        """See :class:`Contender`."""
        apply_event = self._tree.apply_event
        for node, data, _ in reports:
            apply_event(node, data)

    def question(self, hashes: bytes) -> list[int]:
        """See :class:`Contender`."""
        return list(unpack_short(hashes))

    def ask(self, question: list[int]) -> Any:
        """See :class:`Contender`."""
        return self._tree.find_matches(question, False).scores

    def blocks(self, answer: Any) -> int:
        """See :class:`Contender`."""
        return sum(answer.values())


def contender(name: str) -> Contender[Any, Any]:
    """A fresh, empty one.

    Raises:
        ConfigError: it is not installed; says how to install it.
    """
    return Dynamo() if name == DYNAMO else Ours(STRIDES[name])


def reports(name: str, unit_blocks: int) -> LedgerReports | RouterReports:
    """Who writes down a load for this contender."""
    return (
        RouterReports(unit_blocks) if name == DYNAMO else LedgerReports(unit_blocks, STRIDES[name])
    )


def check_peer(name: str) -> str:
    """The version of an installed peer.

    Raises:
        ConfigError: there is no such peer, or it is not installed; says how to install it.
    """
    if name not in PEERS:
        raise ConfigError(f"--peer {name} is not one of: {', '.join(PEERS)}")
    _binding()
    return importlib.metadata.version("ai-dynamo-runtime")


def _binding() -> Any:
    try:
        return importlib.import_module("dynamo._core")
    except ImportError as error:
        raise ConfigError(
            f"--peer dynamo needs the package ai-dynamo-runtime ({error}); {CURE}"
        ) from error
