"""One vLLM engine without any transfer, in a process of its own: what every answer must equal.

Run as a module it is that process: a line of JSON in, a line out, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvferry_connectors.demo.engines import child_environment
from kvferry_connectors.demo.errors import DemoError
from kvferry_connectors.demo.folder import RunFolder
from kvferry_connectors.demo.process import Child
from kvferry_connectors.demo.settings import DemoSettings

READY = "ready"


class Reference:
    """Answers prompts one after the other. Started early, it is ready when it is asked."""

    def __init__(self, settings: DemoSettings, run: RunFolder, model: Path) -> None:
        self._settings = settings
        options = {
            "model": str(model),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": settings.max_model,
            "max_num_batched_tokens": settings.step,
            "block_size": settings.block,
            "kv_cache_memory_bytes": settings.pool_bytes(settings.max_model + 8 * settings.block),
            # Every prompt is computed as a whole, for nothing else proves the others right.
            "enable_prefix_caching": False,
        }
        self._child = Child(
            "the reference engine",
            [sys.executable, "-m", __name__, json.dumps(options)],
            env=child_environment(run) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            log=run.log("reference"),
            talk=True,
        )

    async def start(self) -> None:
        """Start the process; the first :meth:`answer` waits for it."""
        await self._child.start()

    async def ready(self) -> None:
        """
        Raises:
            DemoError: it ended, or is not ready in time.
        """
        line = await self._line(self._settings.start_s)
        if line != READY:
            raise DemoError(f"the reference engine said {line[:200]!r}", self._child.log)

    async def answer(self, prompt: Sequence[int], tokens: int) -> tuple[int, ...]:
        """The greedy answer to a prompt.

        Raises:
            DemoError: it ended, or does not answer in time.
        """
        pipe = self._child.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps([list(prompt), tokens]).encode() + b"\n")
            await pipe.drain()
        except ConnectionError as error:
            raise DemoError(f"the reference engine ended: {error}", self._child.log) from error
        return tuple(json.loads(await self._line(self._settings.answer_s)))

    async def stop(self) -> None:
        """End the process."""
        await self._child.kill()

    async def _line(self, timeout_s: float) -> str:
        pipe = self._child.process.stdout
        assert pipe is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await pipe.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise DemoError(
                f"the reference engine gives no answer:\n{self._child.tail()}", self._child.log
            )
        return line.decode().strip()


def serve(options: dict[str, object]) -> None:
    """The process: answers until its stdin ends."""
    # vLLM logs on stdout, so answers get a copy of it, and the log takes what is written there.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    from vllm import LLM, SamplingParams

    engine = LLM(**options)
    answers.write(READY + "\n")
    for line in sys.stdin:
        prompt, tokens = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        done = engine.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        answers.write(json.dumps(list(done[0].outputs[0].token_ids)) + "\n")


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
