"""``cache_salt`` keeps tenants apart between engines as it does within one."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import StartEngine, joined, prompt
from tests.e2e.engine import Answer, EngineProcess
from tests.e2e.plane import Plane, of

from kvferry.core.events import Retained

PROMPT = 640
TENANTS = [None, "tenant-a", "tenant-b"]

pytestmark = pytest.mark.engine


class Pair:
    """Two engines whose hashes of strings mean the same in both processes."""

    def __init__(self, source: EngineProcess, target: EngineProcess, plane: Plane) -> None:
        self.source, self.target, self.plane = source, target, plane

    def hold(self, name: str, text: list[int], salt: str | None) -> Answer:
        """Let a tenant's prompt be held by the source and known to the coordinator."""
        answer = self.source.run(f"{name}-s", text, tokens=2, salt=salt)
        offer = answer.hint["offer"]
        self.plane.wait_for(lambda seen: of(seen, Retained, offer=offer), "the offer")
        self.plane.wait_projected()
        return answer


@pytest.fixture(scope="module")
def pair(start_engine: StartEngine, plane: Plane) -> Pair:
    cbor = {"prefix_caching_hash_algo": "sha256_cbor"}
    source, target = start_engine("source", **cbor), start_engine("target", **cbor)
    joined(source, target)
    return Pair(source, target, plane)


@pytest.mark.parametrize("way", ["hint", "plan"])
@pytest.mark.parametrize("salt", TENANTS)
def test_a_tenant_shares_with_itself_and_nobody_else(
    pair: Pair, reference: EngineProcess, way: str, salt: str | None
) -> None:
    text = prompt(10 * TENANTS.index(salt) + (way == "hint"), PROMPT)
    name = f"{way}-{salt}"
    held = pair.hold(name, text, salt)
    kvferry = {"hint": held.hint} if way == "hint" else None
    expected = reference.run(name, text, tokens=16).tokens
    for other in TENANTS:
        if other == salt:
            continue
        answer = pair.target.run(f"{name}-{other}", text, tokens=16, kvferry=kvferry, salt=other)
        assert (answer.report["pulled"], answer.report["local"]) == (0, 0)
        assert answer.report["miss"] == ("not_offered" if way == "hint" else "nothing_held")
        assert answer.tokens == expected
    same = pair.target.run(f"{name}-same", text, tokens=16, kvferry=kvferry, salt=salt)
    assert same.report["pulled"] == PROMPT
    assert same.tokens == expected


def test_a_salt_that_begins_alike_is_another_tenant(pair: Pair) -> None:
    text = prompt(100, PROMPT)
    held = pair.hold("alike", text, "tenant-a")
    for number, salt in enumerate(["tenant-", "tenant-aa", "Tenant-a", "tenant-a "]):
        answer = pair.target.run(
            f"alike-{number}", text, tokens=2, kvferry={"hint": held.hint}, salt=salt
        )
        assert answer.report["pulled"] == 0
