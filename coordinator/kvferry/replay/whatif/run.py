"""``whatif`` over a log: a live ledger or an exported file, with or without a coordinator."""

from __future__ import annotations

from kvferry.core.state import State
from kvferry.errors import ConfigError, LedgerRefused
from kvferry.ports.log import LogPort
from kvferry.replay.fold import Progress, fold_to
from kvferry.replay.reading import facts_within
from kvferry.replay.whatif.policy import Policy
from kvferry.replay.whatif.report import Report, report_of
from kvferry.replay.whatif.study import Study


async def whatif(
    log: LogPort,
    policy: Policy,
    of: str,
    *,
    first: int | None = None,
    last: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Decide the facts ``first`` to ``last`` again; by default all there are.

    Args:
        log: the ledger or an exported file.
        policy: the other policy.
        of: what is read, in words.
        force: forecast even where too few decisions were reproduced.
        progress: told now and then as (messages folded, messages to fold).

    Raises:
        ConfigError: the range holds nothing, or the policy names nodes or roles that the ledger
            does not know.
        LedgerUnavailable: the log does not answer.
    """
    begin, end = await facts_within(log, first, last)
    study = Study(await _before(log, begin), policy)
    done = await study.run(log, begin, end, progress)
    policy.check_nodes(done.nodes)
    if policy.extra_decode and not done.decode_nodes:
        raise ConfigError(
            "--extra-decode: no node of the ledger says that it decodes; set the connector's "
            "option role=decode on those that do"
        )
    return report_of(done, policy, of, force=force)


async def _before(log: LogPort, begin: int) -> State:
    """The state before the range; an empty one where the ledger holds nothing of it."""
    if begin <= 1:
        return State()
    try:
        return await fold_to(log, to_seq=begin - 1)
    except LedgerRefused:
        return State()  # As any fold does that begins where its stream begins.
