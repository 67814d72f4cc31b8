"""One silent probe says little, two in a row that an engine is down; a refusal says it at once."""

from __future__ import annotations

import httpx
import pytest

from kvferry_connectors.router.health import Prober
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.settings import EngineUrl, RouterSettings

WHERE = EngineUrl("d0", "http://d0")
REFUSED, UNREACHED = httpx.ConnectError, httpx.ConnectTimeout


@pytest.mark.parametrize(
    ("answers", "up", "why"),
    [
        ([200], True, ""),
        ([UNREACHED, 200], True, ""),
        ([UNREACHED, UNREACHED], False, "not reached in 7 s"),
        ([REFUSED], False, "unreachable (ConnectError)"),
        ([503], False, "answered 503"),
    ],
)
async def test_an_engine_is_known_to_be_down_when_the_router_has_started(
    answers: list[int | type[httpx.TransportError]], up: bool, why: str
) -> None:
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://d0/health"
        said = left.pop(0)
        if isinstance(said, int):
            return httpx.Response(said)
        raise said("as the test wants it", request=request)

    settings = RouterSettings(
        prefill=(EngineUrl("p0", "http://p0"),),
        decode=(WHERE,),
        connect_timeout_s=7.0,
        probe_every_s=600.0,
    )
    engine = Engine(WHERE, "decode")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        prober = Prober(settings, client, [engine])
        await prober.start()
        found = engine.up, engine.why
        await prober.stop()
    assert found[0] is up
    assert why in found[1]
    assert left == []
