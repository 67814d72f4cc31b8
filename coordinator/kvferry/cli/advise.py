"""`kvferry advise`: does moving KV between engines pay for this traffic?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli import guard, render
from kvferry.cli.context import find_ledger, open_log
from kvferry.cli.jsonable import print_document
from kvferry.cli.options import FileOption, JsonOption, NatsOption
from kvferry.cli.progress import progress
from kvferry.errors import ConfigError
from kvferry.files import draft
from kvferry.replay.advise.costs import (
    KV_BYTES_PER_TOKEN,
    LINK_GB_PER_S,
    PREFILL_TOKENS_PER_S,
    Costs,
)
from kvferry.replay.advise.files import advise_file
from kvferry.replay.advise.ledger import advise_ledger
from kvferry.replay.advise.markdown import as_markdown
from kvferry.replay.advise.page.html import as_html
from kvferry.replay.advise.report import Report
from kvferry.replay.advise.requests import RETENTION_S
from kvferry.replay.advise.sections import TITLE, sections, source


@guard.guarded
def command(
    requests: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Recorded requests instead of a ledger: a trace in Mooncake's format; JSON lines "
            "with messages or prompt as the OpenAI API takes them, a timestamp and, where known, "
            "session, and user to tell people apart; or the log of a vLLM server started with "
            "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG. Nothing needs to be installed "
            "for it.",
            show_default=False,
        ),
    ] = None,
    prefill_tokens_per_s: Annotated[
        float,
        typer.Option(
            "--prefill-tokens-per-s",
            metavar="RATE",
            help="Tokens of a prompt that an engine computes a second, where no ledger tells.",
        ),
    ] = PREFILL_TOKENS_PER_S,
    kv_bytes_per_token: Annotated[
        int,
        typer.Option(
            "--kv-bytes-per-token",
            metavar="BYTES",
            help="KV of one token over all layers, where no ledger tells.",
        ),
    ] = KV_BYTES_PER_TOKEN,
    link_gb_per_s: Annotated[
        float,
        typer.Option(
            "--link-gb-per-s",
            metavar="GB/S",
            help="What the link between two engines carries, where no ledger tells.",
        ),
    ] = LINK_GB_PER_S,
    retention_s: Annotated[
        float,
        typer.Option(
            "--retention-s",
            metavar="SECONDS",
            help="How long KV stays after its last use, for --from.",
        ),
    ] = RETENTION_S,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Also write the report as Markdown.",
            show_default=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write it as one HTML file with plots, without scripts.",
            show_default=False,
        ),
    ] = None,
    nats: NatsOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Say whether moving KV between engines pays for this traffic, and why.

    From a ledger or an exported file it tells what was measured; nodes under `kvferry observe`
    count with what they would have pulled. From a file of requests it counts what repeats and
    models the rest. The rule of the recommendation stands in the report.

    Examples:

      kvferry advise --html report.html

      kvferry advise --file monday.kvf --json

      kvferry advise --from requests.jsonl --prefill-tokens-per-s 8000 --link-gb-per-s 3

      kvferry advise --from vllm-server.log --html report.html
    """
    costs = Costs(
        prefill_tokens_per_s=prefill_tokens_per_s,
        kv_bytes_per_token=kv_bytes_per_token,
        link_gb_per_s=link_gb_per_s,
    )
    if not 0 < retention_s < float("inf"):
        raise ConfigError(f"--retention-s {retention_s:g}: use a number of seconds above 0")
    if requests is not None and file is not None:
        raise ConfigError("--from and --file are two sources: leave one of them out")
    if requests is not None:
        with progress("reading") as report_bytes:
            report = advise_file(requests, costs, retention_s, report_bytes)
    else:
        report = guard.run(_of_ledger(nats, file, costs))
    _write(markdown, as_markdown, report)
    _write(html, as_html, report)
    if as_json:
        print_document(report)
    else:
        _print(report)


async def _of_ledger(nats: str | None, file: Path | None, costs: Costs) -> Report:
    of = f"the file {file.name}" if file is not None else f"the ledger {find_ledger(nats).shown}"
    async with open_log(nats, file) as log:
        with progress("reading") as report:
            return await advise_ledger(log, costs, of, report)


def _write(path: Path | None, shape: Callable[[Report], str], report: Report) -> None:
    if path is None:
        return
    with draft(path) as out:
        out.write(shape(report).encode())
    guard.note(f"wrote {path}")


def _print(report: Report) -> None:
    render.line(TITLE)
    render.line(source(report))
    for section in sections(report):
        render.heading(section.title)
        for text in section.lines:
            render.line(f"  {text}")
        if section.rows:
            render.table(section.columns, section.rows)
