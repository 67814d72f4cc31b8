"""What advice from a ledger takes for granted, and what could not be known."""

from __future__ import annotations

import msgspec

from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.parts import counted


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger told, and what it did not."""

    measured: bool
    """Some engine told how long it computed."""
    observed: bool
    """Nothing was moved, only observed."""
    guesses: str
    """What was taken for pulls without a prediction, in words."""
    unnamed: int
    """Turns without a session."""
    unsized: int
    """Turns of nodes whose blocks nobody knows the size of."""
    whole: bool
    """The ledger was read from its beginning on."""


def assumed(costs: Costs, known: Known) -> tuple[str, ...]:
    """The assumptions in words; ``costs`` were used where engines told none."""
    told = [
        "unless a request told where its prompt diverged, it is taken that a session's prompt "
        "begins with the one before and its answer",
        "what a pull spares is its predicted time to compute, or without a prediction that of "
        "as many tokens on average, less the time that it took; of the TTFT without reuse and "
        "with it one is measured, and the other differs from it by that",
    ]
    if known.observed:
        told.append(
            "reuse was only observed: what it would spare is predicted, and links are shown with "
            "what they would have carried"
        )
    if not known.measured:
        told.append(
            "no engine told how long it computed, so it is taken to be "
            f"{costs.prefill_tokens_per_s:,.0f} tokens a second (--prefill-tokens-per-s)"
        )
    if known.observed and known.guesses:
        told.append(known.guesses)
    if not known.whole:
        told.append(
            "what came before the first message is not counted: of a session that is older its "
            "first turn here counts as its first"
        )
    if known.unsized:
        told.append(
            f"{counted(known.unsized, 'turn')} ran on nodes of which the ledger no longer tells "
            "how large their blocks are: what a source had for them is left out"
        )
    if known.unnamed:
        told.append(
            f"{counted(known.unnamed, 'turn')} had no session, and "
            f"{'counts as a session' if known.unnamed == 1 else 'count as sessions'} of one turn: "
            "send x-kvferry-session to have them told apart"
        )
    return tuple(told)
