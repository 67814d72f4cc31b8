"""The index answers as a plain model does, whatever is offered; and the comparison finds faults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from tests.property.index_model import STRIDE, TIERS, History, Offer, histories, play

from kvferry.ids import SHORT_BYTES
from kvferry.index import answer, forest, residency
from kvferry.index.forest import Branch, Forest, Holder
from kvferry.index.residency import Residency


@given(history=histories())
@settings(max_examples=300)
def test_any_history_of_offers_answers_like_the_plain_model(history: History) -> None:
    play(history, Residency())


@given(data=st.data())
@settings(max_examples=150)
def test_hashes_that_no_chain_can_have_break_nothing_and_leave_nothing(data: st.DataObject) -> None:
    """One hash at several places, repeated, in runs that begin anywhere."""
    listed = st.lists(st.sampled_from([b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"]), max_size=6)
    one, offers = Residency(), set[str]()
    for _ in range(data.draw(st.integers(1, 25))):
        name = f"o{data.draw(st.integers(0, 5))}"
        if data.draw(st.booleans()):
            hashes, start = b"".join(data.draw(listed)), data.draw(st.integers(0, 3))
            tier = data.draw(st.sampled_from(TIERS))
            one.put(name, Offer("n0", tier, hashes, start * STRIDE), STRIDE)
            offers.add(name)
        else:
            one.drop(name)
            offers.discard(name)
        asked = b"".join(data.draw(listed))
        for held in one.holders(asked):
            assert 0 < held.samples <= len(asked) // SHORT_BYTES
    for name in offers:
        one.drop(name)
    assert (one.samples(), one.offers(), one.holders(b"aaaaaaaa")) == (0, {}, [])


def _compares_the_ends_only(hashes: bytes, chain: bytes, start: int) -> int:
    return min(len(hashes), len(chain) - start)


def _trims_nothing(self: Forest, branch: Branch, start: int) -> None:
    return None


def _forgets_what_is_implied(
    self: Forest, branch: Branch, reach: int, start: int, holder: Holder
) -> None:
    branch.release(holder, reach)
    if reach == len(branch.hashes):
        self._trim(branch, start)


def _releases_the_furthest(self: Branch, holder: Holder, reach: int) -> None:
    known = self.held[holder]
    if isinstance(known, int):
        del self.held[holder]
    else:
        known.pop()
        if len(known) == 1:
            self.held[holder] = known[0]


def _holds_the_furthest_only(self: Branch, holder: Holder, reach: int) -> None:
    known = self.held.get(holder, 0)
    assert isinstance(known, int)
    self.held[holder] = max(known, reach)


def _jumps_holes(pieces: list[answer._Piece]) -> int:
    return max((piece.end for piece in pieces), default=0)


def _ends_at_a_touch(pieces: list[answer._Piece]) -> int:
    ordered = sorted(pieces, key=lambda piece: piece.start)
    reach = ordered[0].end if ordered and not ordered[0].start else 0
    for before, after in pairwise(ordered):
        if reach == before.end and after.start < reach:
            reach = max(reach, after.end)
    return reach


def _all_tiers_are_alike(tier: str) -> int:
    return 0


def _every_run_begins_a_chain(
    self: Residency, offer: residency.Offered, stride: int, holder: Holder
) -> forest.End | None:
    return self._forest.add(offer.hashes, 0, holder) if offer.hashes else None


MUTANTS: list[tuple[object, str, Callable[..., object]]] = [
    (forest, "shared", _compares_the_ends_only),
    (Forest, "_trim", _trims_nothing),
    (Forest, "remove", _forgets_what_is_implied),
    (Branch, "release", _releases_the_furthest),
    (Branch, "hold", _holds_the_furthest_only),
    (answer, "_reach", _jumps_holes),
    (answer, "_reach", _ends_at_a_touch),
    (answer, "tier_order", _all_tiers_are_alike),
    (Residency, "_list", _every_run_begins_a_chain),
]


@pytest.mark.parametrize(
    ("where", "name", "mutant"), MUTANTS, ids=[mutant.__name__ for *_, mutant in MUTANTS]
)
def test_a_fault_in_the_index_is_found(
    where: object, name: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histories above are rich enough to tell each of these from the real index."""
    monkeypatch.setattr(where, name, mutant)
    search = settings(
        max_examples=2_000,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        find(histories(), _is_wrong, settings=search)
    except NoSuchExample:
        pytest.fail(f"no history tells an index with {mutant.__name__} from the real one")


def _is_wrong(history: History) -> bool:
    try:
        play(history, Residency())
    except AssertionError:
        return True
    return False
