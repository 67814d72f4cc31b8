"""Advice from engines that only observe: its figures against what the engines really did."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.e2e.conftest import BLOCK, Pair, outlasting, prompt
from tests.e2e.engine import Answer
from tests.e2e.plane import of

from kvferry.core.events import Requested, RequestEnded, Retained

pytestmark = pytest.mark.engine
BLOCK_BYTES = BLOCK * 1024
FIRST, SAID, ANSWER = 500, 90, 40
"""Tokens of a first prompt, of what the user says next, and of an answer."""
LASTING = 150
"""Tokens of an answer that is held in between, until its plan is there."""
COMPUTED = "vllm:prompt_tokens_by_source/local_compute"


class Watched(NamedTuple):
    """Two conversations of two turns each, on engines that observe."""

    handed: tuple[tuple[Answer, Answer], ...]
    """Turns that p0 prefilled and d0 answered."""
    moved: tuple[Answer, Answer]
    """Turns on one engine: the first on d0, the second on p0."""
    file: Path
    """The part of the ledger in which this happened; both engines had joined before it."""
    computed: float
    """Prompt tokens that the engines' own metrics say were computed."""

    @property
    def prefills(self) -> list[Answer]:
        """Of each turn, the engine that computed its prompt."""
        return [*(prefill for prefill, _ in self.handed), *self.moved]


@pytest.fixture(scope="module")
def watched(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    plane, engines = pair.plane, (pair.p0, pair.d0)
    assert plane.cli("observe").returncode == 0
    for engine in engines:
        engine.until("mode", lambda mode: mode == "observe")
        engine.ask("reset")
    plane.wait_projected()
    began = plane.events()[-1].seq
    before = sum(engine.ask("sources").get(COMPUTED, 0.0) for engine in engines)
    handed = _handed_over(pair)
    moved = _moved_on(pair)
    plane.wait_for(
        lambda seen: len(of(seen, RequestEnded, session="adv-moved")) == 2, "the last turn's end"
    )
    after = sum(engine.ask("sources")[COMPUTED] for engine in engines)
    file = tmp_path_factory.mktemp("observed") / "observed.kvf"
    done = plane.cli("export", str(file), "--from", str(began + 1))
    assert done.returncode == 0, done.stderr
    yield Watched(handed, moved, file, after - before)
    assert plane.cli("resume").returncode == 0
    for engine in engines:
        engine.until("mode", lambda mode: mode == "on")


def _handed_over(pair: Pair) -> tuple[tuple[Answer, Answer], ...]:
    """As a proxy sends it: the prompt to p0 for one token, then to d0; p0 loses its cache."""
    turns: list[tuple[Answer, Answer]] = []
    text, hint = prompt(91_000, FIRST), None
    for number in (1, 2):
        name = f"adv-handed-{number}"
        given: dict[str, Any] = {"session": "adv-handed", "turn": number, "id": name}
        back: dict[str, Any] = {"hint": hint} if hint else {}
        prefill = pair.p0.run(f"{name}-p", text, tokens=1, kvferry={**given, **back})
        forward = {**given, "hint": prefill.hint}
        answer = pair.d0.run(f"{name}-d", text, tokens=ANSWER, kvferry=forward)
        turns.append((prefill, answer))
        hint = answer.hint
        text = text + answer.tokens + prompt(91_001, SAID)
        pair.p0.ask("reset")
    return tuple(turns)


def _moved_on(pair: Pair) -> tuple[Answer, Answer]:
    """The second turn goes to another engine, without a hint."""
    text = prompt(92_000, FIRST)
    given = {"session": "adv-moved", "turn": 1}
    first = pair.d0.run("adv-moved-1", text, tokens=LASTING, kvferry=given)
    pair.plane.wait_for(lambda seen: of(seen, Retained, session="adv-moved"), "what d0 offers")
    pair.plane.wait_projected()
    text = text + first.tokens + prompt(92_001, SAID)
    given = {"session": "adv-moved", "turn": 2}
    return first, outlasting(pair, pair.p0, "adv-moved-2", text, LASTING, **given)[1]


def told(pair: Pair, file: Path, *args: str) -> str:
    done = pair.plane.cli("advise", "--file", str(file), *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_figures_are_what_the_engines_did(pair: Pair, watched: Watched) -> None:
    report = json.loads(told(pair, watched.file, "--json"))
    reports = [answer.report for answer in watched.prefills]
    assert [one["pulled"] for one in reports] == [0] * 4, "they only observe"
    every = [*reports, *(answer.report for _, answer in watched.handed)]
    assert sum(one["computed"] for one in every) == watched.computed
    assert (report["requests"], report["sessions"]) == (4, 2)
    assert report["prompt_tokens"] == sum(one["prompt_tokens"] for one in reports)
    # A second prompt repeats the first one and its answer.
    repeats = [FIRST + ANSWER, FIRST + LASTING]
    assert report["repeated_tokens"] == sum(repeats)
    assert report["reused_tokens"] == sum(one["local"] for one in reports) == 0
    first, second = report["shares"]
    assert (first["turn"], first["requests"], first["repeated_tokens"]) == ("1", 2, 0)
    assert (second["turn"], second["requests"]) == ("2", 2)
    assert second["repeated_tokens"] == sum(repeats)
    assert report["gaps_s"]["count"] == 2
    # What the last answer to a turn was told, the report counts. A first turn that ends before
    # its plan, for which nobody waits, never learns that nothing is held.
    misses = [one["miss"] for one in reports]
    assert set(misses[::2]) <= {"nothing_held", "observe"}
    assert misses[1::2] == ["observe"] * 2
    assert report["misses"] == Counter(misses)
    assert report["hits"] == {}


def test_links_are_shown_with_what_they_would_have_carried(pair: Pair, watched: Watched) -> None:
    report = json.loads(told(pair, watched.file, "--json"))
    (_, answered), (_, again) = watched.handed
    assert answered.report["local"] == 0
    assert again.report["local"] == (FIRST + ANSWER - 1) // BLOCK * BLOCK, "d0's own cache"
    # Forward what d0 has not; back what d0 has, by a hint all of it and by a plan whole samples.
    forward = FIRST // BLOCK + (FIRST + ANSWER + SAID) // BLOCK - again.report["local"] // BLOCK
    sample = 4
    back = (FIRST + ANSWER - 1) // BLOCK + (FIRST + LASTING - 1) // BLOCK // sample * sample
    links = {(one["source"], one["target"]): one for one in report["links"]}
    assert {link: (one["moves"], one["bytes"]) for link, one in links.items()} == {
        ("p0", "d0"): (2, forward * BLOCK_BYTES),
        ("d0", "p0"): (2, back * BLOCK_BYTES),
    }
    assert report["bytes_per_turn"] * 4 == (forward + back) * BLOCK_BYTES
    assert "reuse was only observed" in " ".join(report["assumptions"])
    assert "what came before the first message is not counted" in " ".join(report["assumptions"])


def test_what_reuse_would_spare_follows_from_what_engines_measured(
    pair: Pair, watched: Watched
) -> None:
    report = json.loads(told(pair, watched.file, "--json"))
    seen = pair.plane.events()
    names = [answer.report["request"] for answer in watched.prefills]
    ended = [of(seen, RequestEnded, request=name)[0] for name in names]
    prefill_s = sum(one.prefill_ms for one in ended) / 1_000
    assert report["prefill_s"] == pytest.approx(prefill_s)
    by_hint, by_plan = (of(seen, Requested, request=names[at])[0] for at in (1, 3))
    assert (by_hint.basis, by_plan.basis) == ("hint", "plan")
    per_token_s = prefill_s / sum(one.computed_tokens for one in ended)

    def moving_s(asked: Requested) -> float:
        """As predicted, else 3 ms and its bytes over 10 GB/s, which the report says it takes."""
        guessed_s = 0.003 + asked.granted * BLOCK_BYTES / 10e9
        return asked.predicted_ms / 1_000 or guessed_s

    spared_s = [
        by_hint.granted * BLOCK * per_token_s - moving_s(by_hint),
        max(0.0, by_plan.recompute_ms / 1_000 - moving_s(by_plan)),
    ]
    assert report["saved_s"] == pytest.approx(sum(spared_s))
    assert "3 ms and what their bytes take on their link" in " ".join(report["assumptions"])
    by = {row["how"]: row["seconds"] for row in report["ttft"] if row["prompt"] == "up to 1k"}
    assert by["without"] == by["computed"], "that is what was measured"
    assert by["without"]["count"] == by["with reuse"]["count"] == 4


def test_each_form_of_the_report_says_the_same(
    pair: Pair, watched: Watched, tmp_path: Path
) -> None:
    markdown, html = tmp_path / "advice.md", tmp_path / "advice.html"
    shown = told(pair, watched.file, "--markdown", str(markdown), "--html", str(html))
    prompts = sum(answer.report["prompt_tokens"] for answer in watched.prefills)
    said = ("4 turns of 2 sessions in ", f"with {prompts:,} prompt tokens", "d0 to p0")
    for text in (shown, markdown.read_text(), html.read_text()):
        assert [words for words in said if words not in text] == []
        assert "Too little was seen to say." in text, "four turns are too few to judge by"
        assert "not pulled: observe" in text
    assert html.read_text().count("<svg") >= 3
    live = pair.plane.cli("advise")
    assert live.returncode == 0, live.stderr
    assert "From the ledger nats://" in live.stdout
