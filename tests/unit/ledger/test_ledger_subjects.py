"""The grammar of the ledger's subjects."""

from __future__ import annotations

import pytest

from kvferry.errors import CodecError, ConfigError
from kvferry.ledger.subjects import (
    BLOCKS_SUBJECTS,
    FACTS_SUBJECTS,
    Address,
    blocks_subject,
    coord_subject,
    facts_subject,
    lane_subject,
    matches,
    parse,
    stream_of,
    token,
)
from kvferry.ports.log import BLOCKS_STREAM, FACTS_STREAM


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a\n", "é", "a" * 129])
def test_name_that_is_no_token_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="node"):
        token(name, "node")


def test_build_and_parse_are_each_others_reverse() -> None:
    assert parse(facts_subject("s-1", "p0")) == Address("s-1", "p0", "facts")
    assert parse(blocks_subject("s-1", "p0")) == Address("s-1", "p0", "blocks")
    assert parse(coord_subject("s-1")) == Address("s-1", "", "coord")
    assert parse(facts_subject("s", "coord")) == Address("s", "coord", "facts")


def test_unknown_lane_is_refused() -> None:
    with pytest.raises(ConfigError, match="lane"):
        lane_subject("s", "n", "other")


@pytest.mark.parametrize(
    "subject", ["kvf", "kvf.s", "kvf.s.n", "kvf.s.n.facts.x", "kvf.s.n.coord", "x.s.n.facts", ""]
)
def test_foreign_subject_is_refused(subject: str) -> None:
    with pytest.raises(CodecError):
        parse(subject)


def test_each_subject_is_taken_by_exactly_one_stream() -> None:
    streams = {FACTS_STREAM: FACTS_SUBJECTS, BLOCKS_STREAM: BLOCKS_SUBJECTS}
    for subject in (facts_subject("s", "n"), blocks_subject("s", "n"), coord_subject("s")):
        taking = [
            name
            for name, patterns in streams.items()
            if any(matches(pattern, subject) for pattern in patterns)
        ]
        assert taking == [stream_of(subject)]


@pytest.mark.parametrize(
    ("pattern", "subject", "taken"),
    [
        (">", "a.b", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.d", False),
        ("a.b", "a.b", True),
    ],
)
def test_patterns_match_as_the_server_does(pattern: str, subject: str, taken: bool) -> None:
    assert matches(pattern, subject) is taken
