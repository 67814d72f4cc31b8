"""vLLM's block hashes, made without vLLM, which is not there where TileRT runs.

Not a second scheme: the same function over the same content, which is proved by the probe block
that is part of a space's fingerprint before any hash of ours is used.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence

from kvferry_connectors.tilert.origin import Origin, OriginRefused

_Content = tuple[bytes, tuple[int, ...], None]
"""Parent, tokens, and the extra keys that the blocks of shareable prompts have none of: those of
LoRA and media are not sent at all, and a salt is part of the first block's hash only."""


def chain_hashes(origin: Origin, tokens: Sequence[int]) -> list[bytes]:
    """Of the full blocks that ``tokens``, which follow the prompt, complete.

    Raises:
        OriginRefused: ``hash_scheme``.
    """
    function = _function(origin)
    parent = origin.chain[-1] if origin.hashes else origin.root
    content, size = [*origin.tail, *tokens], origin.block_tokens
    found = []
    for start in range(0, len(content) - size + 1, size):
        parent = function((parent, tuple(content[start : start + size]), None))
        found.append(parent)
    return found


def check_scheme(origin: Origin) -> None:
    """Prove that the hashes made here are those of the origin's space.

    Raises:
        OriginRefused: ``hash_scheme``, naming what differs.
    """
    probe = _function(origin)((origin.root, tuple(range(origin.block_tokens)), None))
    ours = f"{origin.algorithm}:{probe.hex()[:16]}"
    theirs = origin.components.get("hash_scheme", "")
    if ours != theirs:
        raise OriginRefused("hash_scheme", f"the space has {theirs!r}, this node makes {ours!r}")


def _function(origin: Origin) -> Callable[[_Content], bytes]:
    if origin.algorithm == "sha256":
        return _sha256
    if origin.algorithm == "sha256_cbor":
        try:
            import cbor2
        except ImportError as error:
            raise OriginRefused(
                "hash_scheme", "cbor2 is missing: pip install 'kvferry[tilert]'"
            ) from error

        def sha256_cbor(content: _Content) -> bytes:
            return hashlib.sha256(cbor2.dumps(content, canonical=True)).digest()

        return sha256_cbor
    raise OriginRefused(
        "hash_scheme",
        f"--prefix-caching-hash-algo {origin.algorithm} is unknown here; use sha256_cbor",
    )


def _sha256(content: _Content) -> bytes:
    return hashlib.sha256(pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)).digest()
