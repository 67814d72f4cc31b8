"""How much memory each engine gets: the same bytes under every policy."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kvferry.bench.policy.shapes import Shape
from kvferry.errors import ConfigError
from kvferry.replay.trace import BLOCK_TOKENS, Turn

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(%|TB|GB)", re.IGNORECASE)
_UNITS = {"gb": 10**9, "tb": 10**12}


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one engine, in blocks of the trace."""

    hbm: int
    host: int = 0


def parse_budgets(texts: Sequence[str], whole_bytes: int) -> list[int]:
    """Budgets given one by one or separated by commas, in bytes, ascending.

    Args:
        texts: such as ``800GB``, ``1.5TB`` or ``20%``.
        whole_bytes: what 100 % are.

    Raises:
        ConfigError: one is none of these.
    """
    found: set[int] = set()
    for text in (part.strip() for several in texts for part in several.split(",")):
        match = _BUDGET.fullmatch(text)
        if match is None or not float(match[1]):
            raise ConfigError(f"--budget {text!r} is no budget; write it as 800GB, 1.5TB or 20%")
        amount, unit = float(match[1]), match[2].lower()
        found.add(int(whole_bytes * amount / 100 if unit == "%" else _UNITS[unit] * amount))
    return sorted(found)


def sizes_of(
    budget: int, engines: int, shape: Shape, turns: Sequence[Turn], *, host: bool
) -> Sizes:
    """Each engine's part of a fleet's budget.

    With ``host`` an engine's GPU memory is no more than it has, and the rest is host memory.
    Without, all of it is GPU memory, however much that is: equal bytes, to the advantage of
    policies that know no host tier.

    Raises:
        ConfigError: the longest request does not fit into an engine.
    """
    block_bytes = BLOCK_TOKENS * shape.token_bytes
    each = budget // engines // block_bytes
    hbm = min(each, shape.hbm_bytes // block_bytes) if host else each
    longest = max(turns, key=lambda turn: turn.all_blocks)
    if longest.all_blocks > hbm:
        has_gb, least_gb = (blocks * block_bytes / 1e9 for blocks in (hbm, longest.all_blocks))
        raise ConfigError(
            f"a budget of {budget / 1e9:,.0f} GB leaves an engine {has_gb:,.1f} GB of GPU memory, "
            f"but the longest request needs {least_gb:,.1f} GB: give a larger --budget or "
            "--hbm-gb, or fewer engines by --prefill and --decode"
        )
    return Sizes(hbm=hbm, host=each - hbm)
