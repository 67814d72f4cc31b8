"""Reading a trace: sessions are recognised, and what cannot be right is refused by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry.errors import ConfigError
from kvferry.replay.trace import distinct_blocks, read_trace


def line(
    timestamp: float = 0, input_length: int = 1_100, output_length: int = 5, ids: object = (1, 2, 3)
) -> str:
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": ids,
        }
    )


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_turn_belongs_to_the_longest_prompt_that_it_begins_with(tmp_path: Path) -> None:
    turns = read_trace(
        written(
            tmp_path,
            line(0, 600, ids=[1, 2]),  # One full block: too little to recognise.
            line(1_500, 1_600, ids=[1, 3, 4, 5]),
            line(2_000, 2_100, ids=[1, 3, 4, 6, 7]),
            "",
            line(3_000, 2_700, ids=[1, 3, 4, 6, 8, 9]),
            line(3_000, 1_100, ids=[1, 3, 10]),  # Begins as the others, but with none of them.
        )
    )
    assert [turn.chain for turn in turns] == [
        (1,),
        (1, 3, 4),
        (1, 3, 4, 6),
        (1, 3, 4, 6, 8),
        (1, 3),
    ]
    assert [turn.parent for turn in turns] == [None, None, 1, 2, None]
    assert [turn.number for turn in turns] == [1, 1, 2, 3, 1]
    assert len({turn.session for turn in turns}) == 3
    assert [turn.at_s for turn in turns] == [0, 1.5, 2, 3, 3]
    assert (turns[1].blocks, turns[1].all_blocks) == (4, 4)
    assert distinct_blocks(turns) == 5


def test_a_block_with_the_last_token_is_never_shared(tmp_path: Path) -> None:
    whole = read_trace(written(tmp_path, line(input_length=1_024, ids=[1, 2])))
    assert whole[0].chain == (1,)


def test_only_the_beginning(tmp_path: Path) -> None:
    path = written(tmp_path, line(), line(1), "this is no JSON")
    assert len(read_trace(path, 2)) == 2


@pytest.mark.parametrize(
    ("bad", "why", "cure"),
    [
        ("no JSON", "JSON is malformed", "a line is a JSON object"),
        ('{"timestamp": 3}', "missing required field `input_length`", "hash_ids"),
        (line(5, "long"), "Expected `int`", "a line is a JSON object"),  # type: ignore[arg-type]
        (line(5, 0, ids=[]), "a length below 1", "remove requests"),
        (line(5, output_length=0), "a length below 1", "remove requests"),
        (line(-1), "timestamp -1 after 4", "sort the lines"),
        (line(3), "timestamp 3 after 4", "sort the lines"),
        (line(5, ids=[1, 2]), "2 hash_ids for 1100 tokens, not 3", "one is needed for each 512"),
        (line(5, ids=[2, 1, 3]), "hash id 2 follows another block", "all text from"),
        (line(5, ids=[1, 1, 3]), "hash id 1 follows another block", "all text from"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_the_cure(
    tmp_path: Path, bad: str, why: str, cure: str
) -> None:
    path = written(tmp_path, line(4), bad)
    with pytest.raises(ConfigError) as told:
        read_trace(path)
    assert f"{path} line 2: " in str(told.value)
    assert why in str(told.value)
    assert cure in str(told.value)


def test_no_requests_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no requests"):
        read_trace(written(tmp_path))
    with pytest.raises(ConfigError, match=r"absent\.jsonl cannot be read: No such file"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="bytes line 1: "):
        read_trace(tmp_path / "bytes")
