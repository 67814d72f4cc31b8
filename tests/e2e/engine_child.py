"""What runs in an engine's process: vLLM itself, stepped as its own loop would, and commands."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.engine_probes import Probes

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass
class Answer:
    """What came back for one request."""

    tokens: list[int]
    reason: str
    params: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    choices: list[list[int]] = field(default_factory=list)
    """The tokens of each sample, where ``n`` asked for several."""
    logprobs: list[dict[int, float]] = field(default_factory=list)
    """Of each output token the likeliest ones, where ``logprobs`` were asked for."""

    @property
    def report(self) -> dict[str, Any]:
        """kvferry's report on the request."""
        return dict(self.params.get("kvferry", {}).get("report", {}))

    @property
    def hint(self) -> Any:
        """The hint for the next engine."""
        return self.params.get("kvferry", {}).get("hint")


def main(
    pipe: Any,
    model: str,
    name: str,
    connector: Any,
    args: dict[str, Any],
    log: Path | None,
    env: dict[str, str],
) -> None:
    """The child process: build the engine, obey until told to stop."""
    os.environ.update(ENVIRONMENT | env)
    # What vLLM leaves in there goes with the test's own files.
    tempfile.tempdir = str(Path(model).parent)
    # Python has read this variable before it was set.
    sys.path += [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    if log is not None:
        with log.open("ab") as written:
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)
    try:
        child = Child(pipe, model, name, connector, args)
        pipe.send(("ready", None))
        child.loop()
    except Exception:
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))
    os._exit(0)


class Child(Probes):
    """The engine and the loop that drives it."""

    def __init__(self, pipe: Any, model: str, name: str, connector: Any, args: dict[str, Any]):
        from vllm import LLM

        settings: dict[str, Any] = {
            "model": model,
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 8192,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 2048,
            "block_size": 32,
            "kv_cache_memory_bytes": 32 << 20,
            "disable_log_stats": False,
            "enable_prefix_caching": True,
        }
        settings.update(args)
        if connector is not None and "kv_transfer_config" not in settings:
            settings["kv_transfer_config"] = {
                "kv_connector": "KVFerryConnector",
                "kv_connector_module_path": "kvferry_connectors.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"node": name, **connector},
            }
        self.pipe = pipe
        self.llm = LLM(**settings)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.held = False
        self.hold_at = 0
        self.steps = 0
        self.timed = 0
        self.executed = True
        self._step = self.core.step_fn
        self.core.step_fn = self._noting_step

    def loop(self) -> None:
        while True:
            busy = not self.held and self.core.scheduler.has_requests()
            while self.pipe.poll(0 if busy else 0.01):
                command = self.pipe.recv()
                if command[0] == "stop":
                    self.core.shutdown()
                    return
                getattr(self, f"_{command[0]}")(*command[1:])
                busy = not self.held and self.core.scheduler.has_requests()
            if busy:
                self.steps += 1
                for output in self._stepped():
                    if output.finished:
                        self._answered(output)
                if self.hold_at and self.probe_computed() >= self.hold_at:
                    self.held, self.hold_at = True, 0

    def _noting_step(self) -> Any:
        outputs, self.executed = self._step()
        return outputs, self.executed

    def _stepped(self) -> Any:
        """The outputs of one step, paced as in vLLM's own loop."""
        outputs = self.engine.step()
        if not self.executed:
            time.sleep(0.001)
        return outputs

    def _answered(self, output: Any) -> None:
        completion = output.outputs[0]
        answer = Answer(
            list(completion.token_ids),
            str(completion.finish_reason),
            dict(output.kv_transfer_params or {}),
            str(completion.text),
            [list(sample.token_ids) for sample in output.outputs],
            [
                {token: one.logprob for token, one in each.items()}
                for each in completion.logprobs or ()
            ],
        )
        self.pipe.send(("answer", (output.request_id, answer)))

    def _add(
        self, request: str, prompt: Any, tokens: int, kvferry: Any, salt: Any, sampling: Any
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        given = {"temperature": 0.0, "ignore_eos": True, **sampling}
        asked = given.pop("kv_transfer_params", {})
        if kvferry is not None:
            asked = {**asked, "kvferry": kvferry}
        extra = {"kv_transfer_params": asked} if asked else None
        if sampling.get("n", 1) > 1:  # One answer with every sample in it.
            given["output_kind"] = RequestOutputKind.FINAL_ONLY
        params = SamplingParams(max_tokens=tokens, extra_args=extra, **given)
        inputs: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt:
            inputs["cache_salt"] = salt
        self.engine.add_request(request, inputs, params)

    def _abort(self, request: str) -> None:
        self.engine.abort_request([request])

    def _ask(self, what: str, args: Any) -> None:
        self.pipe.send(("told", getattr(self, f"probe_{what}")(*args)))

    def probe_hold(self, held: bool) -> bool:
        self.held = held
        return held

    def probe_hold_at(self, computed: int) -> int:
        """Stop stepping as soon as a request has computed so many tokens, whoever looks when."""
        self.hold_at = computed
        return computed

    def probe_held(self) -> bool:
        return self.held

    def probe_steps(self) -> int:
        return self.steps

    def probe_timed(self, prompts: list[list[int]], tokens: int) -> tuple[list[float], float]:
        """Run prompts at the same time; seconds to each first token, and to the end of all."""
        began, first = time.perf_counter(), dict[str, float]()
        for prompt in prompts:
            self.timed += 1
            self._add(f"timed-{self.timed}", prompt, tokens, None, None, {})
        while self.engine.has_unfinished_requests():
            for output in self._stepped():
                first.setdefault(output.request_id, time.perf_counter() - began)
        return list(first.values()), time.perf_counter() - began
