"""P's share of a turn on the pool: the prompt's KV goes to the node, the first token comes here."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry.node.slots import Slot
from kvferry_connectors.router.asked import Asked
from kvferry_connectors.router.bodies import Kind, prefill_body, token_ids
from kvferry_connectors.router.context import Router, note_failure, request_name
from kvferry_connectors.router.errors import EngineFailed
from kvferry_connectors.router.pools import Engine
from kvferry_connectors.router.prefill import Prefilled, prefill_on, prefill_part
from kvferry_connectors.router.sessions import Known
from kvferry_connectors.router.sse import PARAMS
from kvferry_connectors.router.tilert.sampling import Sampling
from kvferry_connectors.router.tilert.settings import control_address
from kvferry_connectors.tilert.marks import KEY
from kvferry_connectors.tilert.outcomes import REFUSED


@dataclass(frozen=True)
class First:
    """What P computed.

    Attributes:
        prefilled: as for native decode.
        token: the answer's first token.
        prompt: the prompt's token ids.
        model: the model's name, as P says it.
        ends: the first token ends the answer.
        parsed: P's server made something else of the first token than its text, as a reasoning or
            tool parser does; only vLLM can answer such a request.
        refused: why P's connector did not send the KV, in one word and in plain words; empty if it
            did, or does still.
    """

    prefilled: Prefilled
    token: int
    prompt: list[int]
    model: str
    ends: bool
    parsed: bool
    refused: tuple[str, str] = ("", "")


class PrefillFailed(EngineFailed):
    """P did not build the prompt's KV.

    Attributes:
        maybe_sent: whether a part of it may have gone to the node.
    """

    def __init__(self, engine: str, why: str, maybe_sent: bool) -> None:
        super().__init__(engine, why)
        self.maybe_sent = maybe_sent


def mark(slot: Slot, rid: str, sampling: Sampling) -> dict[str, object]:
    """What tells P's connector where the KV goes, in ``kv_transfer_params``."""
    node = slot.node
    host, port = control_address(node)
    return {
        KEY: {
            "host": host,
            "port": port,
            "rid": rid,
            "sampling": sampling.for_node(),
            "within_s": node.send_within_s,
            "slot": node.name,
            "fence": slot.fence,
            "turn": slot.request,
        }
    }


async def first_token(
    router: Router,
    asked: Asked,
    session: str,
    known: Known | None,
    slot: Slot,
    rid: str,
    sampling: Sampling,
) -> First:
    """Asks one P after the other, as long as it is certain that nothing went to the node.

    Raises:
        Answered: P refused the request itself, with 4xx.
        PrefillFailed: no P did it.
    """
    content = prefill_body(
        asked.kind,
        {**asked.body, **sampling.for_prefill()},
        prefill_part(asked, session, known),
        want_tokens=True,
        params=mark(slot, rid, sampling),
    )
    failure = PrefillFailed("prefill", f"is down ({router.prefill.states()})", maybe_sent=False)
    tried: set[str] = set()
    while len(tried) < router.settings.attempts_max:
        engine = router.prefill.pick(known.prefill if known else "", 0, tried)
        if engine is None:
            break
        tried.add(engine.name)
        try:
            return await _ask(router, asked, engine, content, request_name(rid, "p", len(tried)))
        except EngineFailed as error:
            note_failure(router, asked, error)
            failure = PrefillFailed(error.engine, error.why, maybe_sent=error.reached)
            if error.reached:
                break
    raise failure


async def _ask(router: Router, asked: Asked, engine: Engine, content: bytes, name: str) -> First:
    prefilled = await prefill_on(router, asked, engine, content, name)
    first = _read(asked.kind, prefilled)
    if first is None:
        raise EngineFailed(
            engine.name, "returned no token ids: vLLM 0.32 or newer is needed for TileRT"
        )
    return first


def _read(kind: Kind, prefilled: Prefilled) -> First | None:
    said = prefilled.answer
    choices = said.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return None
    ids = token_ids(choice.get("token_ids"))
    prompt = token_ids((said if kind is Kind.CHAT else choice).get("prompt_token_ids"))
    if not ids or not prompt:
        return None
    model = said.get("model")
    return First(
        prefilled,
        token=ids[0],
        prompt=prompt,
        model=model if isinstance(model, str) else "",
        ends=choice.get("finish_reason") == "stop",
        parsed=kind is Kind.CHAT and _parsed(choice.get("message")),
        refused=_refused(said.get(PARAMS)),
    )


def _refused(params: object) -> tuple[str, str]:
    told = params.get(KEY) if isinstance(params, dict) else None
    if not isinstance(told, dict) or told.get("state") != REFUSED:
        return "", ""
    return str(told.get("reason") or REFUSED), str(told.get("detail") or "")


def _parsed(message: object) -> bool:
    if not isinstance(message, dict):
        return True
    parts = ("reasoning", "reasoning_content", "tool_calls", "function_call")
    return not isinstance(message.get("content"), str) or any(message.get(part) for part in parts)
