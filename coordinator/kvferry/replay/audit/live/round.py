"""One round of answers, each of which waits for the fold to come to its place."""

from __future__ import annotations

from kvferry.core.messages import Holdings
from kvferry.core.state import SpaceState, State
from kvferry.replay.audit.live.comparing import Difference, differences
from kvferry.replay.audit.live.placing import Missed, Place, otherwise, place

Name = tuple[str, str]
"""A node: its space and its name."""


class Round:
    """Answers by node; each node's pages in their order.

    Attributes:
        found: what differs, of each node that could be compared.
        missed: the nodes that could not.
        pages: all answers.
    """

    def __init__(self, state: State, answers: dict[Name, list[Holdings]]) -> None:
        """``state`` is the fold that goes on; it holds nothing stored after anybody was asked."""
        self.found: dict[Name, list[Difference]] = {name: [] for name in answers}
        self.missed: dict[Name, Missed] = {}
        self.pages = answers
        self._state = state
        self._waiting = {name: list(pages) for name, pages in answers.items()}

    @property
    def done(self) -> bool:
        """Nobody waits."""
        return not self._waiting

    def begin(self) -> None:
        """Compare what stands at its place already. All that was folded so far was stored before
        anybody was asked: a record that is past its node's answer has what the node never wrote.
        """
        for name in list(self._waiting):
            first = self._waiting[name][0]
            space = self._state.space(name[0])
            if place(space, first) is Place.PAST:
                self._forged(space, name, first)
            else:
                self.look(name)

    def look(self, name: Name) -> None:
        """The fold moved: compare the pages of this node whose place it has come to."""
        space = self._state.space(name[0])
        pages = self._waiting.get(name, [])
        while pages:
            where = place(space, pages[0])
            if where is Place.BEHIND:
                return
            if where is Place.OTHER:
                self._miss(name, otherwise(space.nodes.get(name[1]), pages[0]))
                return
            if where is Place.PAST:
                self._miss(name, Missed("the ledger stored several of its messages at once"))
                return
            self.found[name] += differences(space, pages.pop(0))
        self._waiting.pop(name, None)

    def give_up(self) -> None:
        """The fold did not come to the place of these."""
        for name in list(self._waiting):
            node = self._state.space(name[0]).nodes.get(name[1])
            self._miss(name, otherwise(node, self._waiting[name][0]))

    def _miss(self, name: Name, why: Missed) -> None:
        self.missed[name] = why
        del self._waiting[name]

    def _forged(self, space: SpaceState, name: Name, page: Holdings) -> None:
        node = space.nodes[name[1]]
        self.found[name].append(
            Difference(
                about=node.name,
                story=f"the ledger has {node.facts_seq} events of epoch {node.epoch} of "
                f"{node.name}, which has written {page.seq}: somebody else wrote in its name",
            )
        )
        for one in self._waiting.pop(name):
            self.found[name] += differences(space, one)
