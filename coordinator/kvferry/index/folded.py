"""A fold that goes on, as whatever answers from it sees it: a coordinator's, or a replay's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvferry.core.applied import Applied
from kvferry.core.state import State
from kvferry.index.spaces import ResidencyIndex

Observer = Callable[[list[Applied]], None]


class Folded(Protocol):
    """Both attributes may be replaced: read them where they are used and do not keep them."""

    state: State
    index: ResidencyIndex

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with what each message applied, after state and index have it."""
        ...
