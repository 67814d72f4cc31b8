"""What advice from a ledger takes for granted, and what could not be known."""

from __future__ import annotations

from kvferry.replay.advise.costs import Costs
from kvferry.replay.advise.savings import Savings


def assumed(costs: Costs, savings: Savings, unnamed: int, *, observed: bool) -> tuple[str, ...]:
    """The assumptions in words.

    Args:
        costs: rates that were used where engines told none.
        savings: what was measured.
        unnamed: turns without a session.
        observed: nothing was moved, only observed.
    """
    told = [
        "unless a request told where its prompt diverged, it is taken that a session's prompt "
        "begins with the one before and its answer",
        "what a pull spares is its predicted time to compute, or without a prediction that of "
        "as many tokens on average, less the time that it took; of the TTFT without reuse and "
        "with it one is measured, and the other differs from it by that",
    ]
    if observed:
        told.append(
            "reuse was only observed: what it would spare is predicted, and links are shown with "
            "what they would have carried"
        )
    if not savings.measured:
        told.append(
            "no engine told how long it computed, so it is taken to be "
            f"{costs.prefill_tokens_per_s:,.0f} tokens a second (--prefill-tokens-per-s)"
        )
    if observed and savings.guessed_moves:
        told.append(
            f"{savings.guessed_moves:,} observed pulls had no prediction: "
            f"{costs.kv_bytes_per_token:,} bytes a token (--kv-bytes-per-token) over "
            f"{costs.link_gb_per_s:g} GB/s (--link-gb-per-s) are taken for them"
        )
    if unnamed:
        told.append(
            f"{unnamed:,} turns had no session, and count as sessions of one turn: send "
            "x-kvferry-session to have them told apart"
        )
    return tuple(told)
