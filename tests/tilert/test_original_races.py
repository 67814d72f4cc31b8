"""What happens when a decode node is used as TileRT's own protocol allows, without a lease."""

from __future__ import annotations

import httpx
from tests.tilert.nodes import DecodeNode
from tests.tilert.parts import WORDS, Parts


def decode(node: DecodeNode, rid: str) -> httpx.Response:
    body = {"rid": rid, "first_token_id": 5, "max_tokens": 3}
    return httpx.post(f"{node.url}/pd/decode", json=body, timeout=60, trust_env=False)


def whose(node: DecodeNode, number: int) -> tuple[str, float]:
    """Which request the engine was told it gets, and whose KV that was."""
    got = node.injected(number)
    values = {float(v) for layer in got["layers"] for v in layer[2].float().unique()}
    assert len(values) == 1
    return got["rid"], values.pop()


def test_a_request_gets_the_kv_of_one_that_was_admitted_before_it_was_decoded(
    parts: Parts,
) -> None:
    """The overwrite race: complete, but not decoded yet, the slot takes the next request."""
    node, sender = parts.nodes["t0"], parts.sender
    before = len(list(node.folder.glob("inject-*.pt")))
    assert sender.send_to(node, "first", 3.0) == "sent"
    assert decode(node, "first").json()["token_ids"] == [5, *WORDS[:2]]
    assert whose(node, before) == ("first", 3.0)
    assert sender.send_to(node, "second", 4.0) == "sent"
    assert sender.send_to(node, "third", 5.0) == "sent"
    answer = decode(node, "second")
    assert answer.status_code == 200
    assert whose(node, before + 1) == ("second", 5.0)
