"""Advice from recorded requests, before anything is installed: what repeats is counted, what reuse
would bring is a model."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.replay.advise.chunks import CHUNKS_MAX, Chunks
from kvferry.replay.advise.costs import MOVE_FLOOR_S, Costs
from kvferry.replay.advise.groups import Shares, Times
from kvferry.replay.advise.parts import time
from kvferry.replay.advise.peaks import WINDOW_S, Load
from kvferry.replay.advise.prompts import Prompt
from kvferry.replay.advise.report import WITH, WITHOUT, Keeping, Link, Report
from kvferry.replay.advise.sessions import Sessions
from kvferry.replay.advise.spread import Values
from kvferry.replay.advise.verdict import Evidence, judge

KEEP_S = (10.0, 60.0, 300.0, 600.0, 1_800.0, 3_600.0)
RETENTION_S = 600.0


class RequestStudy:
    """Takes requests one by one, in the order of their times.

    Args:
        costs: rates of the model.
        retention_s: how long KV is taken to be kept after its last use.
    """

    def __init__(self, costs: Costs, retention_s: float = RETENTION_S) -> None:
        self._costs = costs
        self._retention_s = retention_s
        self._keep_s = tuple(sorted({*KEEP_S, retention_s}))
        self._kept_row = self._keep_s.index(retention_s)
        self._chunks = Chunks(self._keep_s)
        self._sessions = Sessions()
        self._shares = Shares(reused=False)
        self._times = Times((WITHOUT, WITH))
        self._gaps = Values()
        self._load = Load()
        self._turn_bytes = Values()
        self._found = [0] * len(self._keep_s)
        self._requests = self._tokens = self._repeated = 0
        self._chunk_tokens = 0.0
        self._began_s = self._ended_s = 0.0
        self._prefill_s = self._saved_s = 0.0

    def add(self, prompt: Prompt) -> None:
        """The next request."""
        if not self._requests:
            self._began_s = prompt.at_s
        self._ended_s = prompt.at_s
        turn = self._sessions.next(prompt)
        found, known = self._chunks.use(prompt.at_s, prompt.chain)
        answered = turn.covers if turn.gap_s is not None else 0
        for row, chunks in enumerate(found):
            still = answered if turn.gap_s is not None and turn.gap_s <= self._keep_s[row] else 0
            self._found[row] += _reusable(prompt, chunks, still)
        repeated = _reusable(prompt, known, answered)
        if turn.gap_s is not None:
            self._gaps.add(turn.gap_s)
        self._requests += 1
        self._tokens += prompt.tokens
        self._chunk_tokens += prompt.chunk_tokens
        self._repeated += repeated
        self._shares.add(turn.number, prompt.tokens, repeated)
        still = answered if turn.gap_s is not None and turn.gap_s <= self._retention_s else 0
        kept = _reusable(prompt, found[self._kept_row], still) if turn.gap_s is not None else 0
        self._model(prompt, kept)

    def _model(self, prompt: Prompt, kept: int) -> None:
        whole_s = self._costs.compute_s(prompt.tokens)
        moved = kept if self._costs.pays(kept) else 0
        spared_s = self._costs.compute_s(moved) - self._costs.move_s(moved)
        self._prefill_s += whole_s
        self._saved_s += spared_s
        self._times.add(prompt.tokens, WITHOUT, whole_s)
        self._times.add(prompt.tokens, WITH, whole_s - spared_s)
        if moved:
            size = moved * self._costs.kv_bytes_per_token
            self._load.add(prompt.at_s - self._began_s, size)
            self._turn_bytes.add(size)

    def report(self, of: str, notes: Iterable[str] = ()) -> Report:
        """What came of it; ask once, at the end.

        Args:
            of: what was read, in words.
            notes: what the reader assumed.
        """
        load, costs = self._load, self._costs
        links: tuple[Link, ...] = ()
        if load.moves:
            links = (
                Link(
                    source="decode",
                    target="prefill",
                    moves=load.moves,
                    bytes=load.bytes,
                    peak_bytes_s=load.peak_bytes_s,
                    rate_bytes_s=costs.link_bytes_s,
                    measured="option",
                ),
            )
        verdict = judge(
            Evidence(
                turns=self._requests,
                prompt_tokens=self._tokens,
                repeated_tokens=self._repeated,
                prefill_s=self._prefill_s,
                saved_s=self._saved_s,
                links=links,
            )
        )
        return Report(
            kind="trace",
            of=of,
            requests=self._requests,
            sessions=self._sessions.count,
            span_s=self._ended_s - self._began_s,
            prompt_tokens=self._tokens,
            repeated_tokens=self._repeated,
            reused_tokens=None,
            shares=self._shares.rows(),
            gaps_s=self._gaps.spread() if self._gaps.count else None,
            keeping=self._keeping(),
            bytes_per_turn=load.bytes / self._requests if self._requests else 0.0,
            turn_bytes=self._turn_bytes.spread() if self._turn_bytes.count else None,
            links=links,
            ttft=self._times.rows(),
            prefill_s=self._prefill_s,
            saved_s=self._saved_s,
            verdict=verdict,
            assumptions=(*notes, *self._assumed()),
        )

    def _keeping(self) -> tuple[Keeping, ...]:
        span_s = self._ended_s - self._began_s
        chunk = self._chunk_tokens / self._requests if self._requests else 0.0
        chunk_bytes = chunk * self._costs.kv_bytes_per_token
        held = self._chunks.held(self._ended_s)
        return tuple(
            Keeping(
                keep_s=keep_s,
                gaps_share=self._gaps.below(keep_s),
                repeated_tokens=self._found[row],
                mean_bytes=round(held[row] * chunk_bytes / span_s) if span_s else None,
            )
            for row, keep_s in enumerate(self._keep_s)
        )

    def _assumed(self) -> list[str]:
        costs = self._costs
        told = [
            f"TTFT is a model without queues: {costs.prefill_tokens_per_s:,.0f} tokens computed a "
            f"second (--prefill-tokens-per-s), {costs.kv_bytes_per_token:,} bytes of KV a token "
            f"(--kv-bytes-per-token), {costs.link_gb_per_s:g} GB/s (--link-gb-per-s) and "
            f"{MOVE_FLOOR_S * 1e3:g} ms for each move; put in your own figures",
            f"KV is taken to be kept for {time(self._retention_s)} after its last use "
            "(--retention-s), whatever memory that takes, and all of it to cross one link",
            "what a session's first turn repeats is nothing that reuse brings: a beginning that "
            "many sessions share, such as a system prompt, stays in every engine's own cache",
            "of later turns an engine's own cache gives a part too, without any move; which part "
            "no record of requests can tell, but `kvferry observe` on the engines themselves can",
            "a gap lasts from one request to the session's next, for a record of requests does "
            "not tell when answers ended",
            f"peaks are averages of {WINDOW_S:g} s",
        ]
        if self._chunks.forgotten:
            told.append(
                f"only the last {CHUNKS_MAX:,} pieces of prompts were remembered, so repeats of "
                "older ones are not counted"
            )
        return told


def _reusable(prompt: Prompt, chunks: int, answered: int) -> int:
    """Tokens of a prompt that need not be computed; its last one always must."""
    return min(max(int(chunks * prompt.chunk_tokens), answered), prompt.tokens - 1)
