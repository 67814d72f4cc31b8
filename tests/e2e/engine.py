"""Real vLLM engines for tests: one child process each, driven step by step over a pipe.

In-process engines (no API server) start in seconds and let a test see the scheduler's truth: how
many blocks are free, what is still open. They are the real engine, connector included.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.watching import AllocationWatch, Waits

START_S = 180.0
ANSWER_S = 120.0

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

    @property
    def report(self) -> dict[str, Any]:
        """kvferry's report on the request."""
        return dict(self.params.get("kvferry", {}).get("report", {}))

    @property
    def hint(self) -> Any:
        """The hint for the next engine."""
        return self.params.get("kvferry", {}).get("hint")


class EngineProcess:
    """A vLLM engine in a process of its own."""

    def __init__(
        self,
        model: Path,
        name: str,
        *,
        connector: dict[str, Any] | None,
        log: Path | None = None,
        env: dict[str, str] | None = None,
        **args: Any,
    ):
        """``connector`` is the extra config; None runs vLLM without kvferry. ``args`` go to LLM.

        ``log`` gets what the engine writes to its standard output and error; ``env`` is set in
        the child before vLLM is imported.
        """
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.name = name
        self._answers: dict[str, Answer] = {}
        self._process = context.Process(
            target=_main,
            args=(theirs, str(model), name, connector, args, log, env or {}),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._ready = False

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def wait_ready(self) -> EngineProcess:
        """Wait for the engine to be up; several engines may start at the same time."""
        if not self._ready:
            self._receive("ready", START_S)
            self._ready = True
        return self

    def add(
        self,
        request: str,
        prompt: list[int],
        *,
        tokens: int = 8,
        kvferry: dict[str, Any] | None = None,
        salt: str | None = None,
        **sampling: Any,
    ) -> None:
        """Queue a request and return at once."""
        self._pipe.send(("add", request, prompt, tokens, kvferry, salt, sampling))

    def answer(self, request: str, timeout_s: float = ANSWER_S) -> Answer:
        """Wait for a request's end."""
        deadline = time.monotonic() + timeout_s
        while request not in self._answers:
            kind, value = self._next(deadline, f"answer to {request}")
            if kind == "answer":
                self._answers[value[0]] = value[1]
        return self._answers.pop(request)

    def run(self, request: str, prompt: list[int], **kwargs: Any) -> Answer:
        """Queue a request and wait for its end."""
        self.add(request, prompt, **kwargs)
        return self.answer(request)

    def abort(self, request: str) -> None:
        """Abort as a client's disconnect would."""
        self._pipe.send(("abort", request))

    def ask(self, what: str, *args: Any, timeout_s: float = 60.0) -> Any:
        """Call one of the probes in the child, by name."""
        self._pipe.send(("ask", what, args))
        return self._receive("told", timeout_s)

    def hold(self, held: bool) -> None:
        """Stop or resume stepping, while threads of the connector go on."""
        self.ask("hold", held)

    def until(self, what: str, condition: Any, timeout_s: float = 60.0) -> Any:
        """Poll a probe until ``condition(value)`` holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.ask(what)
            if condition(value):
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: {what} stays {value!r}")
            time.sleep(0.02)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(30)

    def ask_to_stop(self) -> None:
        """Ask the engine to shut down and do not wait, so that several do it at the same time."""
        if self._process.is_alive():
            with contextlib.suppress(BrokenPipeError, OSError):
                self._pipe.send(("stop",))

    def stop(self) -> None:
        """Ask the engine to shut down; kill it when it does not."""
        self.ask_to_stop()
        self._process.join(30)
        if self._process.is_alive():
            self.kill()
        self._pipe.close()

    def _receive(self, wanted: str, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            kind, value = self._next(deadline, wanted)
            if kind == wanted:
                return value
            if kind == "answer":
                self._answers[value[0]] = value[1]

    def _next(self, deadline: float, wanted: str) -> tuple[str, Any]:
        left = max(0.0, deadline - time.monotonic())
        if not self._pipe.poll(left):
            raise TimeoutError(f"{self.name}: no {wanted} in time")
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: the engine died, waiting for {wanted}") from None
        if kind == "error":
            raise RuntimeError(f"{self.name}:\n{value}")
        return kind, value


# --- in the child -------------------------------------------------------------------------------


def _main(
    pipe: Any,
    model: str,
    name: str,
    connector: Any,
    args: dict[str, Any],
    log: Path | None,
    env: dict[str, str],
) -> None:
    os.environ.update(ENVIRONMENT | env)
    if log is not None:
        with log.open("ab") as written:
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)
    try:
        child = _Child(pipe, model, name, connector, args)
        pipe.send(("ready", None))
        child.loop()
    except Exception:
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))
    os._exit(0)


class _Child:
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
        self.steps = 0
        self.watch: AllocationWatch
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
        )
        self.pipe.send(("answer", (output.request_id, answer)))

    def _add(
        self, request: str, prompt: Any, tokens: int, kvferry: Any, salt: Any, sampling: Any
    ) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        extra = {"kv_transfer_params": {"kvferry": kvferry}} if kvferry is not None else None
        given = {"temperature": 0.0, "ignore_eos": True, **sampling}
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

    # --- probes -----------------------------------------------------------------------------

    @property
    def side(self) -> Any:
        """kvferry's scheduler side, alone or under MultiConnector; None without kvferry."""
        connector = self.core.scheduler.connector
        for one in getattr(connector, "sub_connectors", [connector]):
            if type(one).__name__ == "KVFerryConnector":
                return one._scheduler
        return None

    def probe_hold(self, held: bool) -> bool:
        self.held = held
        return held

    def probe_free_blocks(self) -> int:
        return int(self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def probe_total_blocks(self) -> int:
        return len(self.core.scheduler.kv_cache_manager.block_pool.blocks)

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

    def probe_watch(self) -> bool:
        """Begin to watch allocations; :meth:`probe_waits` tells."""
        self.watch = AllocationWatch(self.core.scheduler, self.side)
        return True

    def probe_waits(self) -> Waits:
        return self.watch.waits

    def probe_joined(self) -> bool:
        joined = self.side._joiner.joined
        return joined is not None and self.side.agent.state == "joined"

    def probe_space(self) -> str:
        joined = self.side._joiner.joined
        return joined.space if joined is not None else ""

    def probe_incarnation(self) -> str:
        return str(self.side._incarnation)

    def probe_agent(self) -> tuple[str, str]:
        return self.side.agent.state, self.side.agent.why

    def probe_mode(self) -> str:
        return str(self.side._mode)

    def probe_plans(self) -> bool:
        return bool(self.side.agent.plans.available())

    def probe_open(self) -> int:
        return int(self.side._pulls.open_count())

    def probe_requests(self) -> int:
        return len(self.core.scheduler.requests)

    def probe_computed(self) -> int:
        """Most tokens that a living request has computed."""
        requests = self.core.scheduler.requests.values()
        return max((int(request.num_computed_tokens) for request in requests), default=0)

    def probe_outbox(self) -> dict[str, Any]:
        box = self.side.outbox
        return {lane: box.counts(lane) for lane in ("facts", "blocks")}

    def probe_waiting(self) -> int:
        """Events and steps that the ledger does not have yet."""
        box = self.side.outbox
        lanes = sum(box.counts(lane).waiting for lane in ("facts", "blocks"))
        return int(lanes + box.untranslated)

    def probe_pins(self) -> int:
        """Pins of other nodes that stand here."""
        return int(self.side._table.pins())

    def probe_reserved(self) -> int:
        """Outcome slots that wait for the end of a transfer."""
        return int(self.side.outbox.reserved)

    def probe_trust_reads(self, trust: bool) -> bool:
        """Use what was read without asking the source again: the control of the second question."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        puller = get_kv_transfer_group()._worker._puller
        assert puller is not None, "pull something first: the puller is made at the first load"
        puller.unsafe_skip_done = trust
        return trust

    def probe_leases(self) -> int:
        return len(self.side._exports._leased)

    def probe_steps(self) -> int:
        return self.steps

    def probe_reset(self, connector: bool = True) -> bool:
        """Reset the prefix cache; with ``connector`` the connector is told as well."""
        return bool(self.core.scheduler.reset_prefix_cache(reset_connector=connector))

    def probe_sources(self) -> dict[str, float]:
        """vLLM's own prompt-token counters by source."""
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:prompt_tokens"):
                source = metric.labels.get("source", "") if metric.labels else ""
                found[f"{metric.name}/{source}"] = float(metric.value)
        return found
