"""What the tests of the return path share: a prefill of recorded shapes that tells origins, and a
peer of the space that pulls what a node has kept."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import torch
from tests.contract.pools import Pool
from tests.tilert.nodes import DecodeNode
from tests.tilert.playback import write_rows
from tests.tilert.prefill import Prefill
from tests.unit.tilert.caches import EngineCache

from kvferry.core.events import NodeJoined, RequestEnded
from kvferry.node.peers.client import PeerClient
from kvferry.node.peers.session import PeerIdentity
from kvferry.node.peers.wire import Done, Granted, Pin, Settled
from kvferry.node.pull.puller import Puller, PullJob, PullResult
from kvferry.ports.backend import Verify
from kvferry_backends.registry import create
from kvferry_connectors.tilert.fitting import fit
from kvferry_connectors.tilert.metadata import SendOrder
from kvferry_connectors.tilert.origins import Origins, pages_of
from kvferry_connectors.vllm.neighbours import SpaceFacts
from kvferry_connectors.vllm.space import space_id

KEY = "hex:" + "5b" * 32
ROOT = b"\x07" * 32
PULL_S = 60.0
_numbers = itertools.count(1)


def hash_block(parent: bytes, tokens: Sequence[int], salt: str = "") -> bytes:
    """A chain hash by vLLM's own functions."""
    from vllm.utils.hashing import sha256_cbor

    return bytes(sha256_cbor((parent, tuple(tokens), (("cache_salt", salt),) if salt else None)))


def chain_of(tokens: Sequence[int], size: int, salt: str = "") -> list[bytes]:
    """Of the full blocks of a sequence."""
    found: list[bytes] = []
    for start in range(0, len(tokens) - size + 1, size):
        parent = found[-1] if found else ROOT
        found.append(hash_block(parent, tokens[start : start + size], "" if found else salt))
    return found


def facts_of(prefill: Prefill, model: str = "model@1", key: str = KEY) -> SpaceFacts:
    """What a node with this cache knows of its space."""
    cache = prefill.cache
    pages = pages_of(fit(cache.profile, cache.config), cache.config)
    size = cache.block_tokens
    probe = hash_block(ROOT, range(size))
    components = {"model": model, "hash_scheme": f"sha256_cbor:{probe.hex()[:16]}"}
    return SpaceFacts(
        space=space_id(components),
        components=components,
        block_tokens=size,
        block_bytes=sum(page.bytes for page in pages),
        ranks=1,
        algorithm="sha256_cbor",
        root=ROOT,
        key=bytes.fromhex(key.removeprefix("hex:")),
    )


class Turn:
    """One prompt that goes to a node, and what the node generates of it.

    Attributes:
        prompt: token ids.
        answer: the first token and what follows.
    """

    def __init__(self, prefill: Prefill, prompt: list[int], answer: list[int], **kvferry: Any):
        self.prefill = prefill
        self.prompt, self.answer = prompt, answer
        self.rid = f"turn-{next(_numbers)}"
        self.salt = str(kvferry.pop("salt", ""))
        self.params = kvferry
        self.facts: SpaceFacts | None = facts_of(prefill)
        size = prefill.cache.block_tokens
        self.blocks = list(range(-(-len(prompt) // size)))
        """Of the cache, that hold the prompt."""

    @property
    def chain(self) -> list[bytes]:
        """Of the blocks that are complete at the end: the last token has no row."""
        whole = [*self.prompt, *self.answer[:-1]]
        return chain_of(whole, self.prefill.cache.block_tokens, self.salt)

    def request(self) -> Any:
        """As vLLM's scheduler has it."""
        size = self.prefill.cache.block_tokens
        return SimpleNamespace(
            num_prompt_tokens=len(self.prompt),
            prompt_token_ids=self.prompt,
            block_hashes=chain_of(self.prompt, size, self.salt),
            lora_request=None,
            mm_features=None,
            cache_salt=self.salt or None,
            kv_transfer_params={"kvferry": self.params},
        )

    def send(self, node: DecodeNode) -> None:
        """Write its KV to the node, with its origin."""
        cache = self.prefill.cache
        fitted = fit(cache.profile, cache.config)
        origins = Origins(fitted, pages_of(fitted, cache.config), lambda: self.facts)
        order = SendOrder(
            request=f"engine-{self.rid}",
            rid=self.rid,
            host="127.0.0.1",
            port=node.ctrl_port,
            tokens=len(self.prompt),
            last_prompt_token=self.prompt[-1],
            block_ids=(tuple(self.blocks),),
            sampling=origins.sampling({"temperature": 0.0}, self.request(), self.rid)[0],
        )
        self.prefill.sender.begin([order])
        self.prefill.compute()
        outcome = self.prefill.outcome()
        assert outcome.state == "sent", outcome

    def decode(self, node: DecodeNode, **more: Any) -> httpx.Response:
        """Have the node generate."""
        body = {
            "rid": self.rid,
            "first_token_id": self.answer[0],
            "max_tokens": len(self.answer),
            "timeout_s": 60.0,
            **more,
        }
        return httpx.post(f"{node.url}/pd/decode", json=body, timeout=120.0, trust_env=False)

    def run(self, node: DecodeNode, layers: Any = None) -> list[int]:
        """Send and generate; the answer."""
        write_rows(node.folder, layers or drawn(self, seed=1), self.answer[1:])
        self.send(node)
        answer = self.decode(node)
        assert answer.status_code == 200, answer.text
        assert answer.json()["token_ids"] == self.answer
        return list(answer.json()["token_ids"])


def drawn(turn: Turn, seed: int) -> list[Any]:
    """Rows of a whole sequence as an engine might hold them."""
    draw = torch.Generator().manual_seed(seed)
    count = len(turn.prompt) + len(turn.answer)

    def part(width: int) -> Any:
        return torch.randn((count, width), generator=draw).to(torch.bfloat16)

    return [(part(128), part(512), part(64)) for _ in range(turn.prefill.cache.profile.layers)]


class Peer:
    """A node of the space that pulls by TCP, as an engine's worker does."""

    def __init__(
        self, facts: SpaceFacts, pages: Sequence[Any], name: str = "p0", **tcp: object
    ) -> None:
        """``tcp`` are options of its data plane."""
        identity = PeerIdentity(
            node=name,
            space=facts.space,
            incarnation=secrets.token_hex(8),
            components=facts.components,
        )
        self.pages = pages
        self.pool = Pool(16, [page.bytes for page in pages])
        self._tcp = create("tcp", tcp)
        self._tcp.register(self.pool.regions, lambda *asked: False)
        self._client = PeerClient(facts.key, identity)
        self._puller = Puller(self._client, [self._tcp], block_bytes=facts.block_bytes)

    def pull(self, joined: NodeJoined, chain: Sequence[bytes]) -> PullResult:
        """Pull a chain into the pool's first blocks."""
        job = PullJob(
            transfer=f"pull-{next(_numbers)}",
            request="r",
            address=joined.address,
            incarnation=joined.incarnation,
            hashes=tuple(chain),
            start=0,
            target_blocks=tuple(range(len(chain))),
            rank=0,
            ranks=1,
            verify=Verify.FULL,
            deadline_s=PULL_S,
        )
        self._puller.submit(job)
        deadline = time.monotonic() + PULL_S
        while not (found := self._puller.take()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found[0]

    def pin(self, joined: NodeJoined, chain: Sequence[bytes]) -> str:
        """Begin to read a chain that must be granted whole: its transfer."""
        frame = Pin(
            transfer=f"pin-{next(_numbers)}",
            incarnation=joined.incarnation,
            hashes=tuple(chain),
            deadline_ms=round(1000 * PULL_S),
            host=True,
        )
        granted = self._client.call(joined.address, frame, timeout_s=PULL_S)
        assert isinstance(granted, Granted)
        assert len(granted.blocks) == len(chain)
        return frame.transfer

    def done(self, joined: NodeJoined, transfer: str) -> bool:
        """End what :meth:`pin` began; whether the blocks are still what they were."""
        frame = Done(transfer=transfer, rank=0)
        settled = self._client.call(joined.address, frame, timeout_s=PULL_S)
        assert isinstance(settled, Settled)
        return settled.intact

    def page(self, nth: int, block: int) -> Any:
        """What was pulled of one page: its bytes."""
        span = self.pool.regions.spans[nth]
        import ctypes

        held = ctypes.string_at(span.address + block * span.stride, span.length)
        return torch.frombuffer(bytearray(held), dtype=torch.uint8)

    def close(self) -> None:
        self._puller.close()
        self._client.close()
        self._tcp.close()


def cache_page(cache: EngineCache, page: Any, block: int) -> Any:
    """The bytes of one page of prefill's own cache."""
    name = "attn" if page.kind == "rows" else "indexer.k_cache"
    tensor = cache.tensors[f"model.layers.{page.layer}.self_attn.{name}"]
    return tensor[block].contiguous().view(torch.uint8).reshape(-1)


def ended(seen: list[Any], rid: str) -> RequestEnded | None:
    """What the node says of a request's end."""
    found = [r.event for r in seen if isinstance(r.event, RequestEnded) and r.event.request == rid]
    return found[0] if found else None
