"""What each backend says of itself, and which ones this machine cannot run."""

from __future__ import annotations

import pytest
from tests.contract.kinds import KINDS, Kind


@pytest.mark.parametrize("one", KINDS, ids=lambda kind: kind.label)
def test_every_kind_works_here_or_says_why_not(one: Kind) -> None:
    if one.why_not:
        pytest.skip(f"{one.label}: {one.why_not}")
    assert one.memory in one.capabilities.memory
    assert one.capabilities.fence


def test_labels_tell_kinds_apart() -> None:
    assert len({kind.label for kind in KINDS}) == len(KINDS)
