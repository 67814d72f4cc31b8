"""Prompts and requests of every kind: what is shared, what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.conftest import BLOCK, Pair, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Recorded, of
from tokenizers import Tokenizer

from kvferry.core.events import RequestEnded, Retained, Transferred

SENTENCE = "The ferry crosses the river in both directions and carries what the other side needs."

pytestmark = pytest.mark.engine


def offered(pair: Pair, request: str) -> Retained:
    """Wait until a request's blocks are offered and both engines may find them by plan; returns the
    offer."""

    def offers(seen: list[Recorded]) -> list[tuple[int, Retained]]:
        return [
            (r.seq, r.event)
            for r in seen
            if isinstance(r.event, Retained)
            and r.event.tier == "cache"
            and r.event.request.startswith(request)
        ]

    seq, offer = offers(pair.plane.wait_for(offers, f"the offer of {request}"))[-1]
    for engine in (pair.p0, pair.d0):
        engine.until("told", lambda position: position >= seq)
    return offer


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 95, 96, 97])
def test_prompts_around_whole_blocks(pair: Pair, reference: EngineProcess, length: int) -> None:
    text = prompt(70_000 + length, length)
    first = pair.p0.run(f"len-p-{length}", text, tokens=1)
    answer = pair.d0.run(f"len-d-{length}", text, tokens=6, kvferry={"hint": first.hint})
    # One token is computed in any case: 31 are not worth a transfer.
    assert answer.report["pulled"] == (0 if length == BLOCK else length // BLOCK * BLOCK)
    assert answer.tokens == reference.run(f"len-{length}", text, tokens=6).tokens


def test_a_prompt_shorter_than_the_hinted_chain(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(71_000, 1000)
    first = pair.p0.run("short-p", text, tokens=1)
    for length in (300, 340):
        cut = text[:length]
        answer = pair.d0.run(f"short-{length}", cut, tokens=6, kvferry={"hint": first.hint})
        local = answer.report["local"]
        assert local + answer.report["pulled"] == length // BLOCK * BLOCK
        assert answer.tokens == reference.run(f"short-{length}", cut, tokens=6).tokens
    assert local == 288, "the second only pulled what the first had not brought"


def test_a_common_prefix_is_found_by_plan_to_the_block(
    pair: Pair, reference: EngineProcess
) -> None:
    text = prompt(72_000, 1000)
    pair.d0.run("part-d", text, tokens=4)
    offered(pair, "part-d")
    edited = text[:600] + prompt(72_001, 300)
    answer = pair.p0.run("part-p", edited, tokens=6)
    # The index holds every fourth hash; the pin found the exact end.
    assert answer.report["pulled"] == 600 // BLOCK * BLOCK == 576
    assert answer.tokens == reference.run("part", edited, tokens=6).tokens


def test_a_prompt_whose_beginning_was_edited_shares_nothing(
    pair: Pair, reference: EngineProcess
) -> None:
    text = prompt(73_000, 500)
    first = pair.p0.run("edit-p", text, tokens=1)
    edited = [text[0] + 1, *text[1:]]
    answer = pair.d0.run("edit-d", edited, tokens=6, kvferry={"hint": first.hint})
    assert answer.report["pulled"] == 0
    assert answer.tokens == reference.run("edit", edited, tokens=6).tokens


def test_prompt_logprobs_compute_every_token(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(74_000, 400)
    first = pair.p0.run("logp-p", text, tokens=1)
    answer = pair.d0.run("logp-d", text, tokens=6, kvferry={"hint": first.hint}, prompt_logprobs=1)
    assert answer.report["miss"] == "unshareable"
    assert (answer.report["pulled"], answer.report["computed"]) == (0, 400)
    assert answer.tokens == reference.run("logp", text, tokens=6, prompt_logprobs=1).tokens
    # What it computed can be had by others all the same.
    again = pair.p0.run("logp-again", text + answer.tokens, tokens=2)
    assert again.report["local"] + again.report["pulled"] >= 400 // BLOCK * BLOCK


def test_a_stop_string_ends_without_a_hint_and_the_next_turn_is_found_by_chain(
    pair: Pair, reference: EngineProcess, model: Path
) -> None:
    # Ends in whole characters: of a broken one vLLM would echo the prompt's text in its answer.
    words = Tokenizer.from_file(str(model / "tokenizer.json")).encode(SENTENCE).ids
    text = prompt(75_000, 300 - len(words)) + words
    expected = reference.run("stop", text, tokens=150)
    whole = expected.text
    later = range(len(whole) // 2, len(whole) - 3)
    stop = next(
        found for i in later if (found := whole[i : i + 3]).isascii() and whole.index(found) == i
    )
    answer = pair.d0.run("stop-d", text, tokens=150, stop=[stop])
    assert answer.reason == "stop"
    assert answer.text == whole[: whole.index(stop)]
    assert answer.hint is None, "vLLM sends no parameters for a stop string"
    offer = offered(pair, "stop-d")
    assert offer.count >= (300 + 50) // BLOCK, "the stop string came in the second half"
    seen = pair.plane.wait_for(
        lambda seen: [e for e in of(seen, RequestEnded) if e.request.startswith("stop-d")],
        "the end of stop-d",
    )
    (ended,) = [e for e in of(seen, RequestEnded) if e.request.startswith("stop-d")]
    assert ended.outcome == "aborted"
    longer = text + expected.tokens[:50] + prompt(75_001, 40)
    nexts = pair.p0.run("stop-p", longer, tokens=4)
    assert nexts.report["from"] == "d0"
    assert nexts.report["pulled"] == (300 + 50) // BLOCK * BLOCK
    assert nexts.tokens == reference.run("stop2", longer, tokens=4).tokens


def test_what_an_aborted_request_computed_is_offered(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(76_000, 700)
    pair.d0.ask("hold_at", 740)  # So that it cannot end before the abort comes.
    pair.d0.add("gone-d", text, tokens=4000)
    pair.d0.until("held", bool)
    pair.d0.abort("gone-d")
    pair.d0.hold(False)
    offer = offered(pair, "gone-d")
    assert offer.count >= 700 // BLOCK
    answer = pair.p0.run("gone-p", text, tokens=4)
    assert answer.report["pulled"] == 700 // BLOCK * BLOCK
    assert answer.tokens == reference.run("gone", text, tokens=4).tokens
    assert pair.d0.ask("requests") == 0


def test_several_samples_of_one_prompt_share_one_pull(pair: Pair, reference: EngineProcess) -> None:
    text = prompt(77_000, 800)
    first = pair.p0.run("many-p", text, tokens=1)
    settings = {"n": 3, "temperature": 0.9, "seed": 11}
    answer = pair.d0.run("many-d", text, tokens=12, kvferry={"hint": first.hint}, **settings)
    expected = reference.run("many", text, tokens=12, **settings)
    assert len(answer.choices) == 3
    assert sorted(answer.choices) == sorted(expected.choices)
    assert len({tuple(choice) for choice in answer.choices}) == 3, "the samples differ"
    seen = pair.plane.wait_for(
        lambda seen: [e for e in of(seen, RequestEnded) if "many-d" in e.request][2:],
        "the three samples to end",
    )
    ends = [e for e in of(seen, RequestEnded) if "many-d" in e.request]
    assert sorted(e.pulled_tokens for e in ends) == [0, 0, 800]
    assert sorted(e.local_tokens for e in ends)[1:] == [768, 768], "all but the last block"
    assert len([t for t in of(seen, Transferred) if "many-d" in t.request]) == 1
