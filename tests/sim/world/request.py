"""A request as the connector sees vLLM's."""

from __future__ import annotations

import enum
import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from tests.sim.world.pool import Block

BLOCK_TOKENS = 64


class Status(enum.Enum):
    """vLLM's names."""

    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH_CAPPED = 6
    FINISHED_ABORTED = 7


def chain_hashes(tokens: Sequence[int], salt: str, known: list[bytes] | None = None) -> list[bytes]:
    """Hashes of all full blocks; each commits to every token before it and to the salt."""
    hashes = list(known or [])
    for at in range(len(hashes), len(tokens) // BLOCK_TOKENS):
        before = hashes[-1] if hashes else salt.encode()
        part = array("I", tokens[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]).tobytes()
        hashes.append(hashlib.sha256(before + part).digest())
    return hashes


class Request:
    """Prompt, progress and blocks."""

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        salt: str,
        params: dict[str, Any],
    ) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.cache_salt = salt
        self.kv_transfer_params = {"kvferry": params} if params else None
        self.block_hashes = chain_hashes(self.tokens, salt)
        self.blocks: list[Block] = []
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_output_tokens = 0
        self.status = Status.WAITING
        self.lora_request = None
        self.mm_features: tuple[()] = ()
        self.skip_reading_prefix_cache = False
        self.received = False
        """Its load was reported, and it may be scheduled again."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def finished(self) -> bool:
        return self.status.name.startswith("FINISHED")

    def generate(self) -> None:
        """The next token, a function of all tokens so far."""
        self.tokens.append(hash_token(self.tokens))
        self.num_output_tokens += 1
        self.block_hashes += chain_hashes(self.tokens, self.cache_salt, self.block_hashes)[
            len(self.block_hashes) :
        ]


def hash_token(tokens: Sequence[int]) -> int:
    """What a model without a temperature says next."""
    return int.from_bytes(hashlib.sha256(array("I", tokens[-8:]).tobytes()).digest()[:3], "big")
