"""A killed source's memory is free at once although another engine had mapped it, and it restarts.

The pool takes more than half of the GPU, so a successor fits only once the memory of the dead
source is free; as long as a reader keeps it mapped, the driver does not free it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.gpu.asking import prefill, prompt_tokens_by_source, stream
from tests.gpu.families import Ferry, Prompts
from tests.gpu.figures import Record
from tests.gpu.memory import seconds_until, used_bytes
from tests.gpu.servers import Bench

FREED_LIMIT_S = 30.0
FREED_SHARE = 0.1
"""So much of what the source had may still be in use, by the reader's own contexts."""
PROMPT = 8192
CPU_PROMPT = 512
ANSWER = 8


class Story:
    """The source P dies and comes back; D had read from it."""

    def __init__(self, bench: Bench, record: Record, options: argparse.Namespace) -> None:
        self._bench = bench
        self._record = record
        self._model = bench.model(options.model, "llama1b")
        self._sizes = bench.sizes(options.pool, 20_000)
        self._ferry = Ferry()
        self._prompts = Prompts(500 if options.cpu else 128_000)
        self._length = CPU_PROMPT if options.cpu else PROMPT
        self._cpu = options.cpu
        self._connector: dict[str, Any] = {"verify": "off"}
        if options.backends:
            self._connector["backends"] = options.backends

    def run(self) -> bool:
        """Whether all went as it must."""
        empty = self._used()
        self._bench.ledger()
        self._ferry.serve(self._bench, self._model, self._sizes, **self._connector)
        self._bench.wait_up()
        first = self._pulled_by_d()
        taken = self._used() - empty
        self._bench.kill(self._ferry.p)
        freed_s = seconds_until(lambda: self._used() - empty <= FREED_SHARE * taken, FREED_LIMIT_S)
        self._record.put("source_had_bytes", taken)
        self._record.put("still_in_use_bytes", self._used() - empty)
        self._record.put("freed_after_kill_s", freed_s)
        alone = stream(self._ferry.d, self._prompts.fresh(self._length), ANSWER, None)
        self._record.put("reader_serves_alone", len(alone.tokens) == ANSWER)
        successor = self._bench.kvferry("p0", **self._connector)
        self._bench.serve(self._model, 0, self._ferry.p, successor, *self._sizes)
        self._record.put("successor_up_s", round(self._bench.wait_up(), 1))
        second = self._pulled_by_d()
        self._record.put("tokens_pulled_before_and_after", [first, second])
        return freed_s is not None and len(alone.tokens) == ANSWER and min(first, second) > 0

    def _pulled_by_d(self) -> int:
        """Tokens of a fresh prompt that D loaded from P."""
        ids = self._prompts.fresh(self._length)
        params = self._ferry.handed(prefill(self._ferry.p, ids, None))
        before = self._loaded()
        stream(self._ferry.d, ids, ANSWER, params)
        return self._loaded() - before

    def _loaded(self) -> int:
        return prompt_tokens_by_source(self._ferry.d).get("external_kv_transfer", 0)

    def _used(self) -> int:
        return 0 if self._cpu else used_bytes(0)


def parse(argv: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of source_killed.json")
    parser.add_argument("--model", default="", help="folder; by default a Llama-1B shape is made")
    parser.add_argument("--pool", default="80G", help="KV cache of each, over half of a GPU")
    parser.add_argument(
        "--backends", nargs="*", help="data planes of both; by default kvferry's own"
    )
    parser.add_argument("--cpu", action="store_true", help="rehearse with vLLM's CPU build")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    record = Record(options.out / "source_killed.json")
    with Bench(cpu=options.cpu) as bench:
        well = Story(bench, record, options).run()
        record.put("well", well)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
