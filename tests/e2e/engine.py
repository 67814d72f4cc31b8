"""Real vLLM engines for tests: one child process each, driven step by step over a pipe.

In-process engines (no API server) start in seconds and let a test see the scheduler's truth: how
many blocks are free, what is still open. They are the real engine, connector included.

Reading in vLLM takes four fifths of an engine's start, so one process reads it in once, and every
engine is forked from that: a process of its own still, with nothing of another engine's in it.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from tests.e2e.engine_child import ENVIRONMENT, Answer, main

__all__ = ["ENVIRONMENT", "Answer", "EngineProcess"]

START_S = 180.0
ANSWER_S = 120.0
READ_IN = (
    "vllm.entrypoints.llm",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.llama",
    "compressed_tensors",
)
"""What an engine of these tests imports. None of it starts a thread, which a fork would lack."""


@functools.cache
def _fork_server() -> ForkServerContext:
    """Starts the process that engines are forked from, with their environment."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(list(READ_IN))
    with _environment(ENVIRONMENT):
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


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
        fresh: bool = False,
        **args: Any,
    ):
        """``connector`` is the extra config; None runs vLLM without kvferry. ``args`` go to LLM.

        ``log`` gets what the engine writes to its standard output and error; ``env`` is set in
        the child before vLLM is imported. ``fresh`` starts it from this process and thread, whose
        network namespace it then has, and with a seed of its own for ``hash()``.
        """
        context = mp.get_context("spawn") if fresh or env else _fork_server()
        self._pipe, theirs = context.Pipe()
        self.name = name
        self._answers: dict[str, Answer] = {}
        self._process = context.Process(
            target=main,
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

    def answers(self, timeout_s: float) -> dict[str, Answer]:
        """What has ended since; waits for a first one at most ``timeout_s``."""
        while self._pipe.poll(0.0 if self._answers else timeout_s):
            kind, value = self._next(time.monotonic() + timeout_s, "an answer")
            if kind == "answer":
                self._answers[value[0]] = value[1]
        found, self._answers = self._answers, {}
        return found

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

    def until(
        self, what: str, condition: Any, timeout_s: float = 60.0, args: tuple[Any, ...] = ()
    ) -> Any:
        """Poll a probe until ``condition(value)`` holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.ask(what, *args)
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
