"""What lies behind a miss where tenants are kept apart by their ``cache_salt``."""

from __future__ import annotations

import pytest
from tests.unit.replay.test_explain_reasons import Told, foreign, only


async def test_another_tenants_blocks_are_refused_not_diverged() -> None:
    told = await Told().begin()
    await told.at(1.0, "d0", foreign("d0.1", session="s-1", tenant="aaaa"))
    cause = only(await told.wanted("nothing_held", session="s-1", tenant="bbbb"))
    assert (cause.how, cause.reason) == ("refused", "tenant")
    assert "made under another cache_salt (tag aaaa)" in cause.text
    assert "this request has another cache_salt (tag bbbb)" in cause.text
    cause = only(await told.wanted("nothing_held", session="s-1"))
    assert (cause.how, cause.reason) == ("refused", "tenant")
    assert "this request has no cache_salt" in cause.text
    # The control: the same tenant's other prompt.
    assert only(await told.wanted("nothing_held", session="s-1", tenant="aaaa")).how == "diverged"


@pytest.mark.parametrize(
    ("tag", "how"), [("aaaa", "refused"), ("bbbb", "diverged"), ("", "diverged")]
)
async def test_what_is_in_the_host_tier_is_another_tenants_too(tag: str, how: str) -> None:
    """Without a tag nothing is said of tenants: older records have none for the host tier."""
    told = await Told().begin()
    run = foreign("d0.1H1", session="s-1", tenant=tag, tier="host")
    await told.at(1.0, "d0", run)
    cause = only(await told.wanted("nothing_held", session="s-1", tenant="bbbb"))
    assert cause.how == how
