"""Real servers behind a router that sends each turn to both at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.conftest import BLOCK, prompt
from tests.e2e.engine import EngineProcess
from tests.e2e.plane import Plane, of
from tests.e2e.servers import MODEL, Server
from tests.e2e.test_servers import TURN_S, Stack, has_no_hint, until

from kvferry.core.events import Requested, RequestEnded, Transferred

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def stack(plane: Plane, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made: list[Stack] = []
    try:
        made.append(Stack(plane, model, tmp_path_factory.mktemp("servers"), "--overlap"))
        # p0 says who it is in its first answer; from then on it can be followed.
        made[0].post("completions", prompt=prompt(500_000, 100), max_tokens=1)
        yield made[0]
    finally:
        for one in made:
            for server in one.servers:
                server.kill()


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Every process of the server stands still."""
    processes = [one for one in server.processes() if one.is_running()]
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()


def test_two_turns_each_on_both_at_once(stack: Stack, reference: EngineProcess) -> None:
    text = prompt(500_001, 1500)
    answer = stack.post("completions", prompt=text, max_tokens=80, return_token_ids=True)
    tokens = answer.json()["choices"][0]["token_ids"]
    assert tokens == reference.run("ovl-1", text, tokens=80).tokens
    assert has_no_hint(answer.json())
    turn, ends = stack.turns(answer.headers)
    assert (turn.prefill_node, turn.decode_node, turn.outcome) == ("p0", "d0", "ok")
    assert (ends["p0"].computed_tokens, ends["d0"].pulled_tokens) == (1500, 1500 // BLOCK * BLOCK)
    asked = of(stack.plane.events(), Requested, request=ends["d0"].request)
    assert [one.basis for one in asked] == ["handover"]

    longer = text + tokens + prompt(500_002, 200)
    answer = stack.post("completions", prompt=longer, max_tokens=20, return_token_ids=True)
    again = answer.json()["choices"][0]["token_ids"]
    assert again == reference.run("ovl-2", longer, tokens=20).tokens
    _, ends = stack.turns(answer.headers)
    held = (1500 + 80 - 1) // BLOCK * BLOCK
    assert ends["p0"].local_tokens + ends["p0"].pulled_tokens == held
    assert (ends["d0"].local_tokens, ends["d0"].pulled_tokens) == (
        held,
        len(longer) // BLOCK * BLOCK - held,
    )


def test_several_turns_stream_at_once(stack: Stack, reference: EngineProcess) -> None:
    texts = [prompt(500_010 + i, 1200) for i in range(3)]
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        _, events = stack.stream("completions", prompt=texts[i], max_tokens=12)
        found[i] = "".join(one["choices"][0]["text"] for one in events if one["choices"])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TURN_S)
    for i, text in enumerate(texts):
        assert found[i] == reference.run(f"ovl-s{i}", text, tokens=12).text


def test_a_client_that_leaves_ends_both(stack: Stack) -> None:
    body = {
        "model": MODEL,
        "prompt": prompt(500_020, 2000),
        "max_tokens": 500,
        "ignore_eos": True,
        "stream": True,
    }
    until(lambda: stack.p0.running() + stack.d0.running() == 0, "idle engines")
    with frozen(stack.p0):
        with (
            httpx.Client(timeout=httpx.Timeout(TURN_S, read=1.0)) as client,
            pytest.raises(httpx.ReadTimeout),
            client.stream("POST", f"{stack.router.url}/v1/completions", json=body),
        ):
            pass  # p0 stands still, so no answer begins, and the client loses its patience.
        until(lambda: stack.d0.running() == 0, "d0 to be free of the request")
    until(lambda: stack.p0.running() == 0, "p0 to be free of the request")


def test_without_its_prefill_engine_a_turn_is_answered_all_the_same(
    stack: Stack, reference: EngineProcess
) -> None:
    text = prompt(500_030, 1800)
    stack.p0.kill()
    answer = stack.post("completions", prompt=text, max_tokens=8, return_token_ids=True)
    tokens = answer.json()["choices"][0]["token_ids"]
    assert tokens == reference.run("ovl-k", text, tokens=8).tokens
    assert answer.headers["x-kvferry"] == "miss=prefill_down"
    name = answer.headers["x-kvferry-request"]
    seen = stack.plane.wait_for(
        lambda seen: of(seen, RequestEnded, external_id=name, output_tokens=8),
        "the end of the request that was answered",
    )
    ours = {ended.request for ended in of(seen, RequestEnded, external_id=name)}
    assert not [moved for moved in of(seen, Transferred) if moved.request in ours]
