"""A conversation on two GPUs with reuse in both directions, against one engine without kvferry.

Weights are saved random ones: with vLLM's dummy weights every prompt has the same answer, and a
comparison would pass whatever happened.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.gpu.asking import prefill, prompt_tokens_by_source, stream
from tests.gpu.families import Prompts, hint_of, report_of
from tests.gpu.figures import Record
from tests.gpu.servers import Bench

from kvferry_connectors.demo.model import SMALL, ensure_model

P, D, REFERENCE = 8110, 8210, 8310
FIRST_TOKENS, ANSWER, NEW = 1000, 96, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of equal_outputs.json")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--args", default="--attention-backend TRITON_ATTN", help="for vLLM")
    parser.add_argument("--cpu", action="store_true", help="rehearse with vLLM's CPU build")
    options = parser.parse_args()
    record = Record(options.out / "equal_outputs.json")
    with Bench(cpu=options.cpu) as bench:
        model = str(ensure_model(bench.work / "model", SMALL))
        shared = ["--dtype", options.dtype, "--max-model-len", "8192"]
        shared += ["--kv-cache-memory-bytes", str(1 << 28 if options.cpu else 1 << 30)]
        if not options.cpu:
            shared += ["--gpu-memory-utilization", "0.06", *options.args.split()]
        bench.ledger()
        bench.serve(model, 0, P, bench.kvferry("p0"), *shared)
        bench.serve(model, 1, D, bench.kvferry("d0"), *shared)
        bench.serve(model, 1, REFERENCE, None, *shared)
        bench.wait_up()
        rows = converse(options.turns)
        record.put("turns", rows)
        equal = all(row["equal"] for row in rows)
        # Reused in both directions, or the comparison says nothing.
        reused = all(row["d_pulled"] for row in rows) and all(row["p_pulled"] for row in rows[1:])
        record.put("outputs_equal", equal)
        record.put("reused_in_every_turn", reused)
    sys.exit(0 if equal and reused else 1)


def pulled(port: int) -> int:
    """Prompt tokens that this server has loaded from elsewhere, as vLLM counts them."""
    return prompt_tokens_by_source(port).get("external_kv_transfer", 0)


def converse(turns: int) -> list[dict[str, Any]]:
    """All turns; what was pulled and whether the answers agree."""
    prompts = Prompts(500, seed=3)
    text = prompts.fresh(FIRST_TOKENS)
    hint: dict[str, Any] | None = None
    rows = []
    for turn in range(1, turns + 1):
        before = pulled(P), pulled(D)
        from_p = prefill(P, text, hint)
        from_d = stream(D, text, ANSWER, hint_of(from_p))
        expected = stream(REFERENCE, text, ANSWER, None)
        rows.append(
            {
                "turn": turn,
                "prompt": len(text),
                "p_pulled": pulled(P) - before[0],
                "d_pulled": pulled(D) - before[1],
                "p": report_of(from_p),
                "equal": from_d.tokens == expected.tokens,
                "tokens": len(from_d.tokens),
            }
        )
        hint = hint_of(from_d.params)
        text = text + from_d.tokens + prompts.fresh(NEW)
    return rows


if __name__ == "__main__":
    main()
