"""Sends KV with TileRT's own code, as an unmodified prefill would: one JSON line a command.

``{"host", "port", "rid", "seq_len", "value", "model", "dtype"}`` on standard input, what became of
it on standard output. Every value of every layer's rope part is ``value``, so that whoever reads
the node's engine can tell whose KV it got; the other parts are zeros.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import closing
from typing import Any

STAGE_TOKENS = 1024
ADMISSION_WINDOW_S = 3.0


class Sender:
    """All sender ranks of one prefill engine."""

    def __init__(self, model: str, dtype: str) -> None:
        import torch
        from tilert.pd_vllm import wire
        from tilert.pd_vllm.profiles.base import get_profile
        from tilert.pd_vllm.transport import make_transport

        self._wire = wire
        self._profile: Any = get_profile(model)
        self._profile.configure(dtype)
        self._ranks = sorted(self._profile.sender_ranks)
        self._shard = self._profile.shard_bytes(STAGE_TOKENS, len(self._ranks))
        self._memory = torch.zeros(self._shard * len(self._ranks), dtype=torch.uint8)
        self._transport = make_transport("nixl")
        self._transport.init(f"127.0.0.1-{os.getpid()}")
        self._transport.register(self._memory.data_ptr(), self._memory.numel(), 0, host=True)

    def send(self, host: str, port: int, rid: str, seq_len: int, value: float) -> str:
        """``sent``, or the reason why the node refused a rank."""
        for rank in self._ranks:
            refused = self._send_rank(host, port, rid, seq_len, value, rank)
            if refused:
                return refused
        return "sent"

    def _send_rank(
        self, host: str, port: int, rid: str, seq_len: int, value: float, rank: int
    ) -> str:
        with closing(socket.create_connection((host, port), timeout=60)) as connection:
            hello = self._wire.recv_msg(connection)
            self._wire.send_msg(
                connection,
                {
                    "rid": rid,
                    "rank": rank,
                    "seq_len": seq_len,
                    "last_prompt_token": 7,
                    "sampling": None,
                    "admission_window_s": ADMISSION_WINDOW_S,
                },
            )
            answer = self._wire.recv_msg(connection)
            if not answer.get("accepted"):
                return str(answer["error"])
            self._fill(rank, value)
            pages = (seq_len + 63) // 64
            sections = {"seq": seq_len, "npages": pages, "stage_max": STAGE_TOKENS}
            begin = self._memory.data_ptr()
            shards = [begin + self._shard * one for one in self._ranks]
            plan = self._profile.rdma_plan(hello, sections, rank, seq_len, shards)
            self._transport.write(hello, *plan)
            done = self._wire.done_msg(rid, rank, answer["generation"])
            self._wire.send_msg(connection, done)
        return ""

    def _fill(self, rank: int, value: float) -> None:
        import torch
        from tilert.pd_vllm.profiles import mla_nsa

        layers = -(-self._profile.num_layers // len(self._ranks))
        kv_bytes = mla_nsa.KV_BYTES_FP8 if self._profile.mla_fp8 else mla_nsa.KV_BYTES_BF16
        begin = rank * self._shard + layers * STAGE_TOKENS * kv_bytes
        plane = self._memory[begin : begin + layers * STAGE_TOKENS * mla_nsa.PE_BPT]
        plane.view(torch.bfloat16).fill_(value)


def main() -> None:
    sender: Sender | None = None
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What libraries print is no answer.
    for line in sys.stdin:
        given = json.loads(line)
        model, dtype = given.pop("model"), given.pop("dtype")
        sender = sender or Sender(model, dtype)
        try:
            outcome = sender.send(**given)
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        told.write(json.dumps({"outcome": outcome}) + "\n")


if __name__ == "__main__":
    main()
