"""The export table against a plain model of it, over random histories."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.peers.support import ManualClock, Source, chain, pin

from kvferry.node.peers.wire import Abort, Done, Granted, Refused, Renew

CHAINS = [chain(f"c{i}", 3) for i in range(3)]
BLOCKS = st.integers(0, 5)
TRANSFERS = st.sampled_from([f"t{i}" for i in range(6)])


class _ModelPin:
    def __init__(self, granted: Granted, versions: dict[int, int], until_s: float) -> None:
        self.granted = granted
        self.versions = versions
        self.until_s = until_s
        self.ended = False


class ExportMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.source = Source(clock=self.clock)
        self.offers: dict[bytes, list[int]] = {}
        """Hash to its twins, the one that is granted first."""
        self.versions = dict.fromkeys(range(6), 0)
        self.pins: dict[str, _ModelPin] = {}
        self.buried: set[str] = set()

    def _change(self, block: int) -> None:
        self.versions[block] += 1
        for chain_hash, twins in list(self.offers.items()):
            if twins == [block]:
                del self.offers[chain_hash]
            elif twins[0] == block:
                twins[0] = twins.pop()
            elif block in twins:
                twins.remove(block)

    def _standing(self, transfer: str) -> _ModelPin | None:
        known = self.pins.get(transfer)
        if known is None or known.ended:
            return None
        if known.until_s <= self.clock.now_s:
            known.ended = True
            return None
        return known

    @rule(which=st.integers(0, 2), blocks=st.lists(BLOCKS, min_size=1, max_size=3, unique=True))
    def offer(self, which: int, blocks: list[int]) -> None:
        hashes = CHAINS[which][: len(blocks)]
        self.source.table.offer(hashes, blocks)
        for chain_hash, block in zip(hashes, blocks, strict=True):
            if block in self.offers.get(chain_hash, ()):
                continue
            if any(block in twins for twins in self.offers.values()):
                self._change(block)
            self.offers.setdefault(chain_hash, []).append(block)

    @precondition(lambda self: any(len(twins) > 1 for twins in self.offers.values()))
    @rule(nth=st.integers(0, 8))
    def prefer(self, nth: int) -> None:
        """A twin that is not granted yet takes the place of the one that is."""
        others = [(h, twins, at) for h, twins in self.offers.items() for at in range(1, len(twins))]
        chain_hash, twins, at = others[nth % len(others)]
        self.source.table.prefer([chain_hash], [twins[at]])
        twins[0], twins[at] = twins[at], twins[0]

    @rule(block=BLOCKS)
    def reuse(self, block: int) -> None:
        self.source.table.reused(block)
        self._change(block)

    @rule(which=st.integers(0, 2))
    def withdraw(self, which: int) -> None:
        self.source.table.withdraw(CHAINS[which])
        for chain_hash in CHAINS[which]:
            self.offers.pop(chain_hash, None)

    @rule()
    def clear(self) -> None:
        self.source.table.clear()
        for block in self.versions:
            self._change(block)

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(transfer=TRANSFERS, which=st.integers(0, 2))
    def pin(self, transfer: str, which: int) -> None:
        known = self._standing(transfer)
        answer = self.source.table.pin("p0", pin(transfer, CHAINS[which]))
        if transfer in self.buried or (transfer in self.pins and known is None):
            assert answer == Refused(reason="ended")
            return
        if known is not None:
            if known.versions.keys() and self.pins[transfer].granted == answer:
                known.until_s = max(known.until_s, self.clock.now_s + 10)
            elif isinstance(answer, Granted):
                for block in answer.blocks:
                    known.versions.setdefault(block, self.versions[block])
                known.until_s = max(known.until_s, self.clock.now_s + 10)
            return
        expected = []
        for chain_hash in CHAINS[which]:
            if chain_hash not in self.offers:
                break
            expected.append(self.offers[chain_hash][0])
        if not expected:
            assert answer == Refused(reason="not_held")
            return
        assert isinstance(answer, Granted)
        assert answer.blocks == tuple(expected)
        versions = {block: self.versions[block] for block in expected}
        self.pins[transfer] = _ModelPin(answer, versions, self.clock.now_s + 10)

    @rule(transfer=TRANSFERS)
    def renew(self, transfer: str) -> None:
        known = self._standing(transfer)
        answer = self.source.table.renew("p0", Renew(transfer=transfer, deadline_ms=10_000))
        assert isinstance(answer, Refused) == (known is None)
        if known is not None:
            known.until_s = max(known.until_s, self.clock.now_s + 10)

    @rule(transfer=TRANSFERS)
    def done(self, transfer: str) -> None:
        known = self._standing(transfer)
        intact = self.source.table.done("p0", Done(transfer=transfer)).intact
        if known is None:
            if transfer not in self.pins:
                assert not intact
                self.buried.add(transfer)
            return
        unchanged = all(self.versions[b] == v for b, v in known.versions.items())
        # A pin that grew may be void without need, never intact without truth.
        assert intact <= unchanged
        if set(known.versions) == set(known.granted.blocks):
            assert intact == unchanged
        known.ended = True

    @rule(transfer=TRANSFERS)
    def abort(self, transfer: str) -> None:
        known = self._standing(transfer)
        self.source.table.abort("p0", Abort(transfer=transfer))
        if known is not None:
            known.ended = True
        elif transfer not in self.pins:
            self.buried.add(transfer)

    @invariant()
    def offers_agree(self) -> None:
        for hashes in CHAINS:
            held = self.source.table.held(hashes)
            assert held == next((i for i, h in enumerate(hashes) if h not in self.offers), 3)

    @invariant()
    def each_pin_ends_once(self) -> None:
        for transfer in self.pins:
            self._standing(transfer)
        self.source.table.sweep()
        ended = [e.transfer for e in self.source.ended if e.how != "refused"]
        assert sorted(ended) == sorted(t for t, known in self.pins.items() if known.ended)


# Tombstones last a minute of the manual clock: histories stay well below that.
TestExportModel = ExportMachine.TestCase
TestExportModel.settings = settings(
    max_examples=800, stateful_step_count=25, deadline=None, derandomize=True
)
