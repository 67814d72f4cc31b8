"""What a ledger's events come to: measured, and in observe mode what would have been."""

from __future__ import annotations

from collections import Counter, OrderedDict

from kvferry.core.envelope import Batch
from kvferry.core.events import (
    AnyEvent,
    Evicted,
    LinkProbed,
    NodeClosed,
    NodeJoined,
    NodeLeft,
    Requested,
    RequestEnded,
    Retained,
    TransferFailed,
    Transferred,
    TurnEnded,
)
from kvferry.core.state import State
from kvferry.replay.advise.assumed import Known, assumed
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.groups import Shares, Times
from kvferry.replay.advise.guesses import Guesses
from kvferry.replay.advise.offers import Offers
from kvferry.replay.advise.rates import Rates
from kvferry.replay.advise.report import WITH, WITHOUT, Keeping, Report
from kvferry.replay.advise.requests import KEEP_S
from kvferry.replay.advise.savings import Savings
from kvferry.replay.advise.spread import Values
from kvferry.replay.advise.turns import Part, TurnRecord, Turns
from kvferry.replay.advise.verdict import Evidence, judge

SESSIONS_MAX = 100_000
PULLED, OWN_CACHE, COMPUTED = "pulled", "own cache", "computed"
OWN_CACHE_ONLY = "own cache, and the pull of the rest failed"
MISSES_MAX = 64
DIVERGED = "diverged"


class LedgerStudy:
    """Takes the events of the facts stream in their order."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._rates = Rates()
        self._offers = Offers()
        self._turns = Turns(self._turn)
        self._guesses = Guesses(costs, self._rates)
        self._savings = Savings(costs, self._guesses)
        self._shares = Shares(reused=True)
        self._times = Times((WITHOUT, WITH, COMPUTED, OWN_CACHE, PULLED))
        self._gaps = Values()
        self._turn_bytes = Values()
        self._sessions: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
        """By name: turns, end of the last one in ms, tokens of its prompt and answer."""
        self._named = self._unnamed = self._unsized = 0
        self._whole = True
        self._hits: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._count = self._prompt = self._repeated = self._reused = self._sent = 0
        self._first_ms = self._last_ms = 0
        self._failed = 0

    def continues(self, before: State | None) -> None:
        """The first event is not the ledger's first; ``before`` is the state there, if known."""
        self._whole = False
        for name, space in before.spaces.items() if before is not None else ():
            for node in space.nodes.values():
                self._rates.joined(name, node.name, node.block_size, node.block_bytes)

    def add(self, batch: Batch, stored_ms: int) -> None:
        """A batch of the facts."""
        self._first_ms = self._first_ms or stored_ms
        self._last_ms = max(self._last_ms, stored_ms)
        for entry in batch.entries:
            self._take(batch.space, batch.node, entry.event, stored_ms)

    def _take(self, space: str, node: str, event: AnyEvent, at_ms: int) -> None:
        match event:
            case NodeJoined():
                self._rates.joined(space, node, event.block_size, event.block_bytes)
            case Requested():
                self._turns.asked(space, node, event)
                self._rates.observed(space, node, event, at_ms)
                if event.session:
                    self._offers.came_back(event.session, at_ms)
            case Transferred():
                self._rates.arrived(node, event, at_ms)
                self._turns.moved(space, node, event)
            case TransferFailed():
                self._failed += 1
                self._turns.moved(space, node, event)
            case RequestEnded():
                self._sent += max(0, event.prompt_tokens) if event.prompt_sent else 0
                self._turns.ended(space, node, event, at_ms)
            case TurnEnded():
                self._turns.routed(event)
            case Retained():
                self._offers.retained(space, node, event, at_ms)
            case Evicted():
                self._offers.evicted(space, node, event, at_ms)
            case NodeLeft() | NodeClosed():
                self._offers.left(space, event, node, at_ms)
            case LinkProbed():
                self._rates.probed(node, event)

    def _turn(self, turn: TurnRecord) -> None:
        part = turn.main()
        if part is None or not part.ended.prompt_tokens:
            return
        self._unsized += not self._rates.block_tokens(part.space, part.node)
        ended = part.ended
        longer_s, shorter_s = self._savings.add(part, self._granted(part) - ended.local_tokens)
        number, before = self._place(turn, ended)
        reused = min(ended.local_tokens + ended.pulled_tokens, ended.prompt_tokens)
        repeated = max(reused, self._known(part, before))
        self._count += 1
        self._prompt += ended.prompt_tokens
        self._reused += reused
        self._repeated += repeated
        self._shares.add(number, ended.prompt_tokens, repeated, reused)
        how = _how(ended)
        if how == COMPUTED:
            self._miss(part)
        else:
            lost = part.asked is not None and part.asked.transfer and not part.arrived
            self._hits[OWN_CACHE_ONLY if lost else how] += 1
        ttft_s = (turn.ttft_ms or ended.ttft_ms) / 1_000.0
        if ttft_s > 0:
            self._times.add(ended.prompt_tokens, how, ttft_s)
            self._times.add(ended.prompt_tokens, WITHOUT, max(0.0, ttft_s + longer_s))
            self._times.add(ended.prompt_tokens, WITH, max(0.0, ttft_s - shorter_s))
        size = sum(self._moved(part) for part in turn.parts)
        if size:
            self._turn_bytes.add(size)

    def _place(self, turn: TurnRecord, ended: RequestEnded) -> tuple[int, int]:
        """The turn's number in its session, and the tokens that the turn before left."""
        if not turn.session:
            self._unnamed += 1
            return 1, 0
        number, last_ms, tokens = self._sessions.pop(turn.session, (0, 0, 0))
        if number:
            self._gaps.add(max(0, turn.began_ms - last_ms) / 1_000.0)
        else:
            self._named += 1
        answer = max(one.ended.output_tokens for one in turn.parts)
        self._sessions[turn.session] = (number + 1, turn.ended_ms, ended.prompt_tokens + answer)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return number + 1, tokens

    def _known(self, part: Part, before: int) -> int:
        """Tokens of the prompt that some engine had computed before, as the ledger tells."""
        most = part.ended.prompt_tokens - 1
        word, _, at = _miss_of(part).partition("@")
        if word == DIVERGED and at.isdigit():
            return min(int(at), most)
        return min(max(before, self._granted(part)), most)

    def _granted(self, part: Part) -> int:
        """Tokens of the prompt that a source had."""
        if part.asked is None or not part.asked.granted:
            return 0
        tokens = part.asked.granted * self._rates.block_tokens(part.space, part.node)
        return min(tokens, part.ended.prompt_tokens - 1)

    def _moved(self, part: Part) -> int:
        """Bytes that came or would have come to an engine for a turn."""
        if part.asked is None:
            return 0
        return part.pull_bytes or self._rates.would_pull(part.space, part.node, part.asked) or 0

    def _miss(self, part: Part) -> None:
        unsaid = "aborted" if part.ended.outcome == "aborted" else "not told"
        word = _miss_of(part).partition("@")[0] or unsaid
        if word not in self._misses and len(self._misses) >= MISSES_MAX:
            word = "other"
        self._misses[word] += 1

    def report(self, of: str, last: int) -> Report:
        """What came of it; ask once, at the end.

        Args:
            of: what was read, in words.
            last: last message that was read.
        """
        self._turns.close()
        spared_s, observed_s = self._savings.spared_s, self._savings.observed_s
        observed = observed_s != 0 and not self._rates.moved
        saved_s = observed_s if observed else spared_s
        prefill_s = self._savings.prefill_s + self._savings.recompute_s
        links = self._rates.links()
        verdict = judge(
            Evidence(
                turns=self._count,
                prompt_tokens=self._prompt,
                repeated_tokens=self._repeated,
                prefill_s=prefill_s,
                saved_s=saved_s,
                links=links,
                moved=self._rates.moved,
                failed=self._failed,
                observed=observed,
                measured=True,
            )
        )
        return Report(
            kind="ledger",
            of=f"{of}, facts up to message {last:,}",
            requests=self._count,
            sessions=self._named + self._unnamed,
            span_s=(self._last_ms - self._first_ms) / 1_000.0,
            prompt_tokens=self._prompt,
            repeated_tokens=self._repeated,
            reused_tokens=self._reused,
            prompt_sent=self._sent,
            shares=self._shares.rows(),
            gaps_s=self._gaps.spread() if self._gaps.count else None,
            keeping=self._keeping(),
            hits=dict(self._hits.most_common()),
            misses=dict(self._misses.most_common()),
            kept=self._offers.rows(),
            bytes_per_turn=self._rates.bytes / self._count if self._count else 0.0,
            turn_bytes=self._turn_bytes.spread() if self._turn_bytes.count else None,
            links=links,
            ttft=self._times.rows(),
            ttft_measured=True,
            prefill_s=prefill_s,
            saved_s=saved_s,
            verdict=verdict,
            assumptions=assumed(
                self._costs,
                Known(
                    measured=self._savings.measured,
                    observed=observed,
                    guesses=self._guesses.told(),
                    unnamed=self._unnamed,
                    unsized=self._unsized,
                    whole=self._whole,
                ),
            ),
        )

    def _keeping(self) -> tuple[Keeping, ...]:
        return tuple(
            Keeping(
                keep_s=keep_s,
                gaps_share=self._gaps.below(keep_s),
                repeated_tokens=None,
                mean_bytes=None,
            )
            for keep_s in KEEP_S
        )


def _how(ended: RequestEnded) -> str:
    if ended.pulled_tokens:
        return PULLED
    return OWN_CACHE if ended.local_tokens * 2 >= ended.prompt_tokens else COMPUTED


def _miss_of(part: Part) -> str:
    return part.ended.miss or (part.asked.miss if part.asked is not None else "")
