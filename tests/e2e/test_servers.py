"""Real OpenAI servers behind the real router: as in production, but small."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.conftest import BLOCK, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, Recorded, of
from tests.e2e.servers import HOST, MODEL, engine_server, router_server

from kvferry.core.events import NodeClosed, PinEnded, RequestEnded, Transferred, TurnEnded
from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.vllm_log import VllmLog

RANKS = 1
"""Two ranks an engine work too, but starve each other where there are only two cores."""
BLOCK_BYTES = BLOCK * 1024
TURN_S = 120.0
SETTLE_S = 60.0

pytestmark = pytest.mark.engine


class Stack:
    """A prefill and a decode server, a router and a ledger."""

    def __init__(self, plane: Plane, model: Path, folder: Path, *router_options: str) -> None:
        self.plane = plane
        self.p0 = engine_server("p0", model, plane.url, folder, ranks=RANKS, log_prompts=True)
        self.d0 = engine_server("d0", model, plane.url, folder, ranks=RANKS)
        self.engines = (self.p0, self.d0)
        self.servers = [*self.engines]
        for engine in self.engines:
            engine.wait_ready()
        self.router = router_server(plane.url, [self.p0], [self.d0], folder, *router_options)
        self.servers.append(self.router)
        self.router.wait_ready()

    def post(self, path: str, **body: Any) -> httpx.Response:
        """One request to the router, answered as a whole."""
        given = {"model": MODEL, "temperature": 0, "ignore_eos": True, **body}
        answer = httpx.post(f"{self.router.url}/v1/{path}", json=given, timeout=TURN_S)
        assert answer.status_code == 200, answer.text
        return answer

    def stream(self, path: str, **body: Any) -> tuple[httpx.Headers, list[dict[str, Any]]]:
        """The same, streamed; returns the headers and every event but the last."""
        given = {"model": MODEL, "temperature": 0, "ignore_eos": True, "stream": True, **body}
        url = f"{self.router.url}/v1/{path}"
        with httpx.stream("POST", url, json=given, timeout=TURN_S) as answer:
            assert answer.status_code == 200
            data = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        return answer.headers, [json.loads(one) for one in data[:-1]]

    def turns(self, headers: httpx.Headers) -> tuple[TurnEnded, dict[str, RequestEnded]]:
        """What the ledger says of one answer: the turn, and its request on each engine."""
        name = headers["x-kvferry-request"]

        def found(seen: list[Recorded]) -> list[TurnEnded]:
            turn = of(seen, TurnEnded, request=name)
            return turn if len(of(seen, RequestEnded, external_id=name)) == 2 else []

        seen = self.plane.wait_for(found, f"turn {name}")
        ends = {
            r.node: r.event
            for r in seen
            if isinstance(r.event, RequestEnded) and r.event.external_id == name
        }
        return found(seen)[0], ends


@pytest.fixture(scope="module")
def stack(plane: Plane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made: list[Stack] = []
    try:
        made.append(Stack(plane, model, tmp_path_factory.mktemp("servers")))
        yield made[0]
    finally:
        for one in made:
            for server in one.servers:
                server.kill()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def has_no_hint(value: object) -> bool:
    """Nothing of what engines tell each other is in what a client got."""
    return "kv_transfer_params" not in json.dumps(value).replace('"kv_transfer_params": null', "")


def test_two_turns_by_completion(stack: Stack, reference: EngineProcess) -> None:
    text = prompt(110_000, 400)
    answer = stack.post("completions", prompt=text, max_tokens=80, return_token_ids=True)
    tokens = answer.json()["choices"][0]["token_ids"]
    assert tokens == reference.run("srv-1", text, tokens=80).tokens
    assert has_no_hint(answer.json())
    assert answer.headers["x-kvferry"] == "miss=nothing_held"
    turn, ends = stack.turns(answer.headers)
    assert (turn.prefill_node, turn.decode_node, turn.outcome) == ("p0", "d0", "ok")
    assert (ends["d0"].pulled_tokens, ends["d0"].source) == (384, "p0")
    assert turn.prefill_request == ends["p0"].request
    assert turn.decode_request == ends["d0"].request
    longer = text + tokens + prompt(110_001, 60)
    again = stack.post("completions", prompt=longer, max_tokens=8, return_token_ids=True)
    assert again.json()["choices"][0]["token_ids"] == reference.run("srv-2", longer).tokens
    # P computed 400 tokens itself, whole blocks of which it still has; D has 479.
    _, ends = stack.turns(again.headers)
    assert ends["p0"].local_tokens == 384
    assert (ends["p0"].pulled_tokens, ends["p0"].source) == (448 - 384, "d0")
    assert "pulled=64 from=d0 " in again.headers["x-kvferry"]


def test_a_streamed_completion_is_the_same(stack: Stack, reference: EngineProcess) -> None:
    text = prompt(111_000, 333)
    headers, events = stack.stream("completions", prompt=text, max_tokens=20, return_token_ids=True)
    tokens = [t for e in events for c in e["choices"] for t in c.get("token_ids") or ()]
    assert tokens == reference.run("srv-3", text, tokens=20).tokens
    assert has_no_hint(events)
    assert "x-kvferry" in headers
    _, ends = stack.turns(headers)
    assert ends["d0"].pulled_tokens == 320


def test_a_chat_whole_and_streamed(stack: Stack) -> None:
    talk = [
        {"role": "system", "content": "The ferry carries what the other side needs. " * 6},
        {"role": "user", "content": "What is slow or missing, and why?"},
    ]
    whole = stack.post("chat/completions", messages=talk, max_tokens=60)
    said = whole.json()["choices"][0]["message"]
    headers, events = stack.stream("chat/completions", messages=talk, max_tokens=60)
    parts = [c["delta"].get("content") or "" for e in events for c in e["choices"]]
    assert "".join(parts) == said["content"] != ""
    assert has_no_hint([whole.json(), *events])
    _, first = stack.turns(whole.headers)
    assert first["d0"].source == "p0"
    _, second = stack.turns(headers)
    assert second["d0"].local_tokens > 0
    talk += [
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": "Ask the ledger: it records every move of every block."},
    ]
    third = stack.post("chat/completions", messages=talk, max_tokens=4)
    _, ends = stack.turns(third.headers)
    assert (
        ends["p0"].local_tokens + ends["p0"].pulled_tokens >= first["d0"].prompt_tokens // 32 * 32
    )


def test_a_client_that_leaves_in_mid_stream_frees_the_request_on_both_engines(
    stack: Stack,
) -> None:
    body = {"model": MODEL, "prompt": prompt(112_000, 300), "max_tokens": 3000, "stream": True}
    url = f"{stack.router.url}/v1/completions"
    given = {**body, "ignore_eos": True}
    with httpx.stream("POST", url, json=given, timeout=TURN_S) as answer:
        name = answer.headers["x-kvferry-request"]
        # It is D's: P's one token is never shown.
        assert next(answer.iter_lines()).startswith("data: ")
    _, ends = stack.turns(httpx.Headers({"x-kvferry-request": name}))
    assert ends["d0"].outcome == "aborted"
    assert ends["d0"].output_tokens < 3000
    until(lambda: all(engine.running() == 0 for engine in stack.engines), "somebody still runs")


def test_a_client_that_leaves_before_any_answer_frees_both_engines(stack: Stack) -> None:
    def computed() -> int:
        """Prompt tokens so far: unlike what runs now, that is seen however late one looks."""
        return sum(sum(engine.sources().values()) for engine in stack.engines)

    before = computed()
    given = {"model": MODEL, "prompt": prompt(113_000, 900), "max_tokens": 3000}
    content = json.dumps({**given, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((HOST, stack.router.port)) as client:
        client.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        until(lambda: computed() > before, "the request never came")
    until(lambda: all(engine.running() == 0 for engine in stack.engines), "somebody still runs")
    assert stack.post("completions", prompt=prompt(113_001, 50), max_tokens=2).json()["choices"]


def may_count(seen: list[Recorded]) -> set[int]:
    """What vLLM may have counted as pulled on the node that wrote these.

    It counts a prompt with its first token, so one whose client left counts only if it came so far.
    """
    ends = of(seen, RequestEnded)
    left = [end.pulled_tokens for end in ends if end.outcome == "aborted"]
    sure = sum(end.pulled_tokens for end in ends) - sum(left)
    return {sure + sum(some) for n in range(len(left) + 1) for some in combinations(left, n)}


def test_every_rank_reports_every_load_exactly_once(stack: Stack) -> None:
    """A rank that were silent would hang its request, and one that spoke twice kill its engine."""
    seen = stack.plane.wait_for(
        lambda seen: (
            {t.transfer for t in of(seen, Transferred)}
            <= {p.transfer for p in of(seen, PinEnded, how="intact")}
        ),
        "the end of every pin",
    )
    moved = of(seen, Transferred)
    assert moved
    for one in moved:
        assert one.bytes == one.count * BLOCK_BYTES, "each rank moved its share"
        # What crosses no wire has no digest.
        assert one.verified_blocks or one.backend == "peer_host"
        assert len(of(seen, PinEnded, transfer=one.transfer, how="intact")) == 1
    assert len({one.transfer for one in moved}) == len(moved)
    counted = {e.name: e.sources()["external_kv_transfer"] for e in stack.engines}

    def agree(seen: list[Recorded]) -> bool:
        return all(
            count in may_count([r for r in seen if r.node == name])
            for name, count in counted.items()
        )

    # Waited for: the last request's end may be stored a moment after its transfer's.
    stack.plane.wait_for(agree, f"the tokens that vLLM counted as pulled: {counted}")


def test_each_request_has_one_line_in_its_engines_log(stack: Stack) -> None:
    ends = [r for r in stack.plane.events() if isinstance(r.event, RequestEnded)]
    assert ends
    for engine in stack.engines:
        log = engine.log.read_text(errors="replace")
        for one in ends:
            assert isinstance(one.event, RequestEnded)
            lines = log.count(f"kvferry request={one.event.request} ")
            assert lines == (1 if one.node == engine.name else 0)


def test_advice_is_given_from_the_log_of_a_server(stack: Stack) -> None:
    logged = Counter(
        one.tokens for one in VllmLog("--from p0.log").prompts(stack.p0.log.open("rb"))
    )
    ended = Counter(
        r.event.prompt_tokens
        for r in stack.plane.events()
        if isinstance(r.event, RequestEnded) and r.node == "p0"
    )
    assert ended.total() >= 4
    assert not ended - logged, "each request of the ledger is in the log, as long as it was"
    report = advise_file(stack.p0.log, Costs(), 600.0)
    assert report.requests == logged.total()
    assert report.sessions < report.requests, "some of them continue others"
    assert report.repeated_tokens > 0


def test_sigterm_ends_everything_cleanly(stack: Stack) -> None:
    ports = {server.name: server.ports() for server in stack.servers}
    assert all(ports.values())
    for server in (stack.router, *stack.engines):
        server.terminate()
    for server in (stack.router, *stack.engines):
        assert server.wait() == 0, server.tail()
        assert server.left_over() == []
    for name, listened in ports.items():
        for port in listened:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port), timeout=5).close()
            assert port, name
    closed = stack.plane.wait_for(
        lambda seen: {"p0", "d0"} <= {r.node for r in seen if isinstance(r.event, NodeClosed)},
        "both engines to say good-bye",
    )
    assert len(of(closed, NodeClosed)) >= 2
