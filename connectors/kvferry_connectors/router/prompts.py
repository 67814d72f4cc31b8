"""Cuts a prompt so that a later, longer prompt of the same conversation can be recognised.

A prompt becomes a chain of nodes, each a hash that commits to everything before it. A chat has
a node after every message. A text or a list of token ids has one after every
:data:`UNIT_BYTES` bytes, and a prompt may end between two nodes; such an end is hashed from the
last node before it.
"""

from __future__ import annotations

import hashlib
import json

from kvferry_connectors.router.bodies import Body, Kind

UNIT_BYTES = 512
_HASH_BYTES = 16


class PromptChain:
    """One prompt's nodes and the bytes between them.

    Attributes:
        nodes: the root, then one hash after each unit.
        end_length: bytes of the prompt after its last node; 0 for a chat.
    """

    def __init__(self, root: bytes, units: list[bytes], tail: bytes = b"") -> None:
        self._units = [*units, tail]
        self.end_length = len(tail)
        self.nodes = [root]
        for unit in units:
            self.nodes.append(_hash(self.nodes[-1], unit))

    def end(self, index: int, length: int) -> bytes | None:
        """The name of the prefix that ends ``length`` bytes after node ``index``.

        ``None`` if the prompt's next unit has fewer bytes than that.
        """
        if length > len(self._units[index]):
            return None
        return _hash(self.nodes[index], b"end" + self._units[index][:length])

    def own_end(self) -> bytes:
        """The name of the whole prompt."""
        return _hash(self.nodes[-1], b"end" + self._units[-1])


def chain_of(kind: Kind, body: Body, scope: bytes) -> PromptChain | None:
    """The chain of a request's prompt, or ``None`` if it has no single readable prompt.

    Args:
        scope: what must be equal for two conversations to be allowed to meet, as a hash.
    """
    root = _hash(scope, kind.value.encode() + _canonical(body.get("model")))
    if kind is Kind.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return None
        return PromptChain(root, [_canonical(message) for message in messages])
    content = _prompt_bytes(body.get("prompt"))
    if not content:
        return None
    whole = len(content) // UNIT_BYTES * UNIT_BYTES
    units = [content[at : at + UNIT_BYTES] for at in range(0, whole, UNIT_BYTES)]
    return PromptChain(root, units, content[whole:])


def scope_of(*parts: str) -> bytes:
    """A scope's hash; every part counts, and none can imitate another's boundary."""
    return _hash(b"", json.dumps(parts).encode())


def _prompt_bytes(prompt: object) -> bytes:
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return b"t" + prompt.encode("utf-8", "surrogatepass")
    if isinstance(prompt, list) and all(type(item) is int for item in prompt):
        # Closed by a comma, so that 1,2 is no prefix of 1,23.
        return b"i" + "".join(f"{item}," for item in prompt).encode()
    return b""


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _hash(before: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(before + content, digest_size=_HASH_BYTES).digest()
