"""Where prefill cannot tell a node where a prompt comes from, the ledger says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.tilert.caches import EngineCache
from tests.unit.tilert.test_scheduler import Rig, fitted

from kvferry.core.events import SendEnded
from kvferry.core.story import describe
from kvferry_connectors.tilert.origin import KEY
from kvferry_connectors.tilert.origins import Origins, pages_of
from kvferry_connectors.tilert.profiles import BF16, Profile
from kvferry_connectors.vllm.neighbours import SpaceFacts

PAGES = pages_of(fitted(), EngineCache(Profile(name="small", layers=2, version=900), BF16).config)
FACTS = SpaceFacts(
    space="m-1",
    components={"model": "m"},
    block_tokens=64,
    block_bytes=sum(page.bytes for page in PAGES),
    ranks=1,
    algorithm="sha256_cbor",
    root=b"\x01" * 32,
    key=b"\x02" * 32,
)
PLAIN = {"block_hashes": [b"\x03" * 32] * 2, "lora_request": None, "mm_features": None}


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(fitted(), 1)
    yield made
    made.reporter.close()
    made.side.close()


def sent(rig: Rig, name: str, facts: SpaceFacts | None, state: str = "sent", **more: Any) -> Any:
    """Have a prompt sent by an engine that knows so much of its space; the wire's words and the
    send's end."""
    rig.side.origins = Origins(fitted(), PAGES, lambda: facts)
    request = rig.request(name, **{**PLAIN, **more})
    order = rig.ordered(request)
    rig.tell(name, state, reason="" if state == "sent" else "busy")

    def end() -> SendEnded | None:
        found = [e for e in rig.facts() if isinstance(e, SendEnded) and e.request == name]
        return found[0] if found else None

    rig.until(lambda: end() is not None)
    return order.sampling[KEY], end()


def test_the_sends_end_says_why_the_node_can_keep_nothing(rig: Rig) -> None:
    said, ended = sent(rig, "early", None)
    assert said == {"none": "the engine is in no space yet"}
    assert ended.no_origin == said["none"]
    assert "the node cannot keep it: the engine is in no space yet" in describe("p0", ended)
    _, media = sent(rig, "media", FACTS, mm_features=["an image"])
    assert "LoRA or media" in media.no_origin


def test_it_says_nothing_where_the_node_was_told_or_not_sent_to(rig: Rig) -> None:
    said, ended = sent(rig, "told", FACTS)
    assert "origin" in said
    assert ended.no_origin == ""
    assert "keep" not in describe("p0", ended)
    _, refused = sent(rig, "refused", None, state="refused")
    assert (refused.reason, refused.no_origin) == ("busy", "")
