"""Conversations over the nodes of a made history."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvferry.bench.history.node import Node, Talk
from kvferry.bench.history.shape import Message, Shape, Written
from kvferry.ids import SHORT_BYTES, sample_stride

SEED = 7
TALKS_EACH = 2
"""Conversations under way for each prefill node."""


class History:
    """Makes messages in the order in which they would be stored. Equal shapes, equal histories."""

    def __init__(self, shape: Shape) -> None:
        self.written = Written()
        self._shape = shape
        self._random = random.Random(SEED)
        self._stride = sample_stride(shape.block_size)
        half = shape.nodes // 2
        self._prefill = [Node(f"p{n}", shape, self.written) for n in range(half)]
        self._decode = [Node(f"d{n}", shape, self.written) for n in range(half)]
        self._under_way: list[Talk] = []
        self._over: list[Talk] = []
        self._begun = 0

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes."""
        return [node.name for node in (*self._prefill, *self._decode)]

    def held(self) -> list[bytes]:
        """Conversations that their decode nodes still hold as a whole, as sampled short hashes."""
        self._over = [talk for talk in self._over if talk.decode.held(talk) == talk.blocks]
        return [talk.chain for talk in self._over]

    def join(self) -> Iterator[Message]:
        """The beginning of every node's record."""
        for node in (*self._prefill, *self._decode):
            node.join()
            yield from node.look()

    def until(self, block_events: int) -> Iterator[Message]:
        """Turns until at least so many block events are written, and what is left in outboxes."""
        while self.written.block_events < block_events:
            talk = self._next()
            self._turn(talk)
            for node in (talk.prefill, talk.decode):
                node.turns += 1
                if node.turns % self._shape.turns_per_look == 0:
                    yield from node.look()
        for node in (*self._prefill, *self._decode):
            yield from node.look()

    def _next(self) -> Talk:
        """Some conversation that goes on, or a new one while too few do."""
        half = len(self._prefill)
        if len(self._under_way) >= TALKS_EACH * half:
            return self._random.choice(self._under_way)
        place = self._begun % half
        talk = Talk(self._begun, self._prefill[place], self._decode[place])
        self._begun += 1
        self._under_way.append(talk)
        return talk

    def _turn(self, talk: Talk) -> None:
        shape, prefill, decode = self._shape, talk.prefill, talk.decode
        request = f"{talk.name}.{talk.turns}"
        answer = max(1, shape.turn_tokens // 4 // shape.block_size)
        asked = shape.turn_tokens - shape.turn_tokens // 4 if talk.turns else shape.first_tokens
        prompt = talk.blocks + max(1, asked // shape.block_size)
        self._grow(talk, prompt + answer)
        held, local = decode.held(talk), prefill.held(talk)
        step = max(1, shape.step_tokens // shape.block_size)
        if held > local:
            prefill.pull(decode, request, wanted=prompt, granted=held, start=local, basis="plan")
            prefill.produce(talk, request, local, held, step=held, via="pulled")
        else:
            prefill.miss(request, prompt)
        prefill.produce(talk, request, max(held, local), prompt, step=step)
        prefill.end(request, prompt=prompt, local=local, pulled=max(0, held - local), output=1)
        prefill.offer(talk, prompt, request)
        lease = prefill.lease(talk, prompt, request)
        decode.pull(prefill, request, wanted=prompt, granted=prompt, start=held, basis="hint")
        prefill.end_lease(lease)
        decode.produce(talk, request, held, prompt, step=prompt, via="pulled")
        decode.produce(talk, request, prompt, talk.blocks, step=1)
        output = answer * shape.block_size
        decode.end(request, prompt=prompt, local=held, pulled=prompt - held, output=output)
        decode.offer(talk, talk.blocks, request)
        talk.turns += 1
        self.written.turns += 1
        if talk.turns == shape.turns:
            self._under_way.remove(talk)
            self._over.append(talk)

    def _grow(self, talk: Talk, blocks: int) -> None:
        samples = blocks // self._stride - talk.blocks // self._stride
        talk.chain += self._random.randbytes(samples * SHORT_BYTES)
        talk.blocks = blocks
