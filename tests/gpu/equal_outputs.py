"""A conversation on two GPUs with reuse in both directions, against one engine without kvferry."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from servers import Bench, prefill, stream

from kvferry_connectors.demo.model import SMALL, ensure_model

P, D, REFERENCE = 8110, 8210, 8310
TURNS, ANSWER, NEW = 6, 96, 300


def hint_of(params: dict[str, Any] | None) -> dict[str, Any]:
    """What the next engine is told."""
    return {"kvferry": {"hint": (params or {}).get("kvferry", {}).get("hint")}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--args", default="--attention-backend TRITON_ATTN")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = str(ensure_model(options.out / "model", SMALL))
    bench = Bench(options.out)
    shared = ["--dtype", options.dtype, "--gpu-memory-utilization", "0.06", *options.args.split()]
    shared += ["--max-model-len", "8192", "--prefix-caching-hash-algo", "sha256_cbor"]
    try:
        bench.ledger()
        bench.serve(model, 0, P, bench.kvferry("p0"), *shared)
        bench.serve(model, 1, D, bench.kvferry("d0"), *shared)
        bench.serve(model, 1, REFERENCE, None, *shared)
        bench.wait_up()
        print(json.dumps(converse()), flush=True)
    finally:
        bench.stop()


def converse() -> dict[str, Any]:
    """All turns; what was pulled and whether the answers agree."""
    draw = random.Random(3)

    def fresh(count: int) -> list[int]:
        return [draw.randrange(10, 500) for _ in range(count)]

    text = fresh(1000)
    hint: dict[str, Any] | None = None
    rows = []
    for turn in range(1, TURNS + 1):
        from_p = prefill(P, text, hint)
        body = {"model": "m", "prompt": text, "max_tokens": ANSWER, "temperature": 0}
        body["ignore_eos"] = True
        _, tokens, from_d = stream(D, {**body, "kv_transfer_params": hint_of(from_p)})
        _, expected, _ = stream(REFERENCE, body)
        rows.append(
            {
                "turn": turn,
                "prompt": len(text),
                "p": from_p.get("kvferry", {}).get("report"),
                "d": (from_d or {}).get("kvferry", {}).get("report"),
                "equal": tokens == expected,
                "tokens": len(tokens),
            }
        )
        hint = hint_of(from_d)
        text = text + tokens + fresh(NEW)
    return {"turns": rows, "outputs_equal": all(row["equal"] for row in rows)}


if __name__ == "__main__":
    main()
