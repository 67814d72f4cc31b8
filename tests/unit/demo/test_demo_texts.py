"""Prompts of the demo: reproducible, distinct, and diverging exactly where they must."""

from __future__ import annotations

import pytest

from kvferry_connectors.demo.texts import END_TOKEN, FIRST_TOKEN, Conversation, edited, text


def common_prefix(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_seed_gives_the_same_ordinary_tokens_again() -> None:
    assert text("a", 500) == text("a", 500)
    assert text("a", 500) != text("b", 500)
    assert all(FIRST_TOKEN <= token < END_TOKEN for token in text("a", 500))


def test_a_conversation_grows_by_words_and_answers() -> None:
    talk = Conversation("A")
    first = list(talk.ask(100))
    talk.answered([1, 2, 3])
    second = talk.ask(150)
    assert len(first) == 100
    assert len(second) == 150
    assert second[:103] == [*first, 1, 2, 3]
    assert talk.prompts == [first, second]


def test_stripped_reasoning_diverges_right_after_the_prompt() -> None:
    answer = text("answer", 30)
    whole, stripped = Conversation("A"), Conversation("A")
    for talk, cut in ((whole, 0), (stripped, 20)):
        talk.ask(100)
        talk.answered(answer, stripped=cut)
    one, other = whole.ask(300), stripped.ask(300)
    assert other[100:110] == answer[20:]
    assert common_prefix(one, other) == 100


@pytest.mark.parametrize("seed", ["x", "y", "z"])
def test_an_edit_changes_every_token_of_its_range_and_no_other(seed: str) -> None:
    before = text("history", 400)
    after = edited(before, 150, 60, seed=seed)
    different = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert different == list(range(150, 210))
    assert all(FIRST_TOKEN <= token < END_TOKEN for token in after)


def test_an_edit_that_happens_to_be_the_same_is_still_an_edit() -> None:
    before = text("same", 50)
    after = edited(before, 0, 50, seed="same")
    assert all(a != b for a, b in zip(before, after, strict=True))
