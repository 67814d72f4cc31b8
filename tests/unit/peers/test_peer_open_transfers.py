from __future__ import annotations

from tests.unit.peers.support import chain, pin

from kvferry.node.peers.client_open import TRANSFERS_MAX, OpenTransfers
from kvferry.node.peers.wire import Abort, Done, Renew

HASHES = chain("a", 1)


def _opened(*names: str, **fields: int) -> OpenTransfers:
    transfers = OpenTransfers()
    for name in names:
        transfers.before(pin(name, HASHES, **fields))
    return transfers


def test_a_pin_counts_from_before_it_is_sent_until_its_end() -> None:
    transfers = _opened("settled", "aborted", "refused", "living")
    for frame in (Done(transfer="settled"), Abort(transfer="aborted")):
        transfers.before(frame)
        transfers.after(frame)
    transfers.forget_refused(pin("refused", HASHES))
    assert transfers.living() == ("living",)


def test_a_transfer_of_several_ranks_lives_until_the_last_settled() -> None:
    transfers = _opened("t", ranks=2)
    transfers.after(Done(transfer="t", rank=1))
    transfers.after(Done(transfer="t", rank=1))
    assert transfers.living() == ("t",)
    transfers.after(Done(transfer="t", rank=0))
    assert transfers.living() == ()


def test_what_can_stand_no_longer_is_not_listed() -> None:
    transfers = _opened("over", "renewed", deadline_ms=-10_000)
    transfers.before(Renew(transfer="renewed", deadline_ms=10_000))
    assert transfers.living() == ("renewed",)


def test_calls_about_unknown_transfers_open_nothing() -> None:
    transfers = OpenTransfers()
    transfers.before(Renew(transfer="t", deadline_ms=1000))
    transfers.after(Done(transfer="t"))
    assert transfers.living() == ()


def test_the_list_is_bounded() -> None:
    transfers = _opened(*(f"t{i}" for i in range(TRANSFERS_MAX + 5)))
    assert len(transfers.living()) == TRANSFERS_MAX
