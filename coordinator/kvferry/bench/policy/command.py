"""``kvferry bench policy``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvferry.bench.policy.policies import POLICIES, parse_policies
from kvferry.bench.policy.shapes import SHAPES
from kvferry.bench.policy.show import Progressing, show
from kvferry.bench.policy.sizes import parse_budgets
from kvferry.bench.policy.study import Study
from kvferry.bench.results import JsonFile, write
from kvferry.errors import ConfigError
from kvferry.files import check_writable
from kvferry.replay.trace import BLOCK_TOKENS, distinct_blocks, read_trace

BUDGETS = "4%,10%,16%,23%,30%,36%"
_NAMES = "; ".join(f"{name}: {what}" for name, what in POLICIES.items())


def command(
    trace: Annotated[
        Path,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Requests in Mooncake's format, JSON lines with timestamp, input_length, "
            "output_length and hash_ids.",
        ),
    ],
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="SIZE,...",
            help="KV memory of all engines together, as 800GB or 1.5TB, or as 20% of the KV of "
            f"all distinct prompt blocks of the trace. Without it: {BUDGETS}.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME,...", help=f"Without it: all. {_NAMES}."),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            metavar="|".join(SHAPES),
            help="What KV, computing and moving cost: 8b is fitted to measured times, 70b derived.",
        ),
    ] = "8b",
    prefill: Annotated[
        int, typer.Option("--prefill", min=0, max=64, help="Prefill engines; 0: as the shape says.")
    ] = 0,
    decode: Annotated[
        int, typer.Option("--decode", min=0, max=64, help="Decode engines; 0: as the shape says.")
    ] = 0,
    hbm_gb: Annotated[
        float,
        typer.Option(
            "--hbm-gb",
            min=0,
            help="GPU memory of an engine for KV; what a budget has beyond is host memory for "
            "policies that use it. 0: as the shape says.",
        ),
    ] = 0.0,
    ttl_s: Annotated[
        float, typer.Option("--ttl-s", min=1, help="How long the policy ttl pins, seconds.")
    ] = 480.0,
    requests: Annotated[
        int, typer.Option("--requests", min=0, help="Only so many from the beginning; 0: all.")
    ] = 0,
    json_file: JsonFile = None,
) -> None:
    """Compare retention policies on a recorded trace, with equal memory.

    The trace goes through a simulated fleet in virtual time: prefill and decode engines with the
    memory of the budget, routed as the router does. What is leased, copied to host memory and
    pulled from where is decided by the code that real nodes run. The same trace gives the same
    figures always. TTFT comes from a model of engines and links, not from engines.

    Examples:

      kvferry bench policy --trace conversation_trace.jsonl

      kvferry bench policy --trace t.jsonl --budget 1TB,2TB --policy ours,ttl --json policy.json
    """
    check_writable(json_file)
    if shape not in SHAPES:
        raise ConfigError(f"--shape {shape!r} is not known: use {' or '.join(SHAPES)}")
    chosen = SHAPES[shape].on(hbm_gb=hbm_gb)
    names = parse_policies(policy or [*POLICIES])
    turns = read_trace(trace, requests or None)
    whole = distinct_blocks(turns) * BLOCK_TOKENS * chosen.token_bytes
    study = Study(
        turns=turns,
        shape=chosen,
        prefill=prefill or chosen.prefill,
        decode=decode or chosen.decode,
        policies=names,
        budgets=parse_budgets(budget or [BUDGETS], whole),
        ttl_s=ttl_s,
    )
    study.check()
    with Progressing(len(study.runs) * len(turns)) as progress:
        document = study.document(progress.begin, progress.advance)
    write(document, json_file, lambda: show(document))
