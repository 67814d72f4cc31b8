"""A process that takes part in nothing of kvferry: it registers memory with NIXL and says where.

Arguments: how many parts its buffer has, and the bytes of each. Its first line on standard output
is JSON; then it answers each line on standard input with the digest of its memory and with how
often that has the byte 9.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config


def main() -> None:
    parts, size = int(sys.argv[1]), int(sys.argv[2])
    # NIXL tells of its agents on standard output.
    told, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    held = [np.zeros(size, dtype=np.uint8) for _ in range(parts)]
    agent = nixl_agent(f"foreign-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
    for number, part in enumerate(held):
        agent.register_memory([(part.ctypes.data, size, number, "")], "DRAM")
    meta = base64.b64encode(agent.get_agent_metadata()).decode()
    print(json.dumps({"meta": meta, "bases": [p.ctypes.data for p in held]}), file=told, flush=True)
    for _ in sys.stdin:
        whole = b"".join(part.tobytes() for part in held)
        print(hashlib.sha256(whole).hexdigest(), whole.count(9), file=told, flush=True)


if __name__ == "__main__":
    main()
