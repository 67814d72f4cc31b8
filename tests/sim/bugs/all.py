"""Every seeded bug by its name."""

from __future__ import annotations

from tests.sim.bugs.found import FOUND_BUGS
from tests.sim.bugs.ledger import LEDGER_BUGS
from tests.sim.bugs.lives import LIFE_BUGS
from tests.sim.bugs.peers import PEER_BUGS
from tests.sim.bugs.slots import SLOT_BUGS

BUGS = {bug.name: bug for bug in (*PEER_BUGS, *LEDGER_BUGS, *LIFE_BUGS, *FOUND_BUGS, *SLOT_BUGS)}
