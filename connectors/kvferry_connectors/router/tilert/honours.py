"""What a TileRT node can honour of a request, field by field.

Only fields that are known to be honoured pass. One that nobody has thought of is refused by name
as well: answering without it would be a wrong answer that looks like a right one.
"""

from __future__ import annotations

from kvferry_connectors.router.bodies import Body, Kind
from kvferry_connectors.router.tilert.sampling import NEUTRAL, Sampling

TOP_K_MAX = 255
"""A TileRT node takes more for no limit at all."""

_PROMPT = (
    "model prompt messages add_special_tokens add_generation_prompt continue_final_message "
    "chat_template chat_template_kwargs documents reasoning_effort include_reasoning cache_salt"
)
"""They shape the prompt, which P builds."""
_LENGTH = "max_tokens max_completion_tokens ignore_eos"
_ANSWER = "stream stream_options return_token_ids skip_special_tokens"
_HARMLESS = (
    "user session_id metadata store service_tier safety_identifier prompt_cache_key priority "
    "request_id stream_interval parallel_tool_calls kvferry include_stop_str_in_output "
    "truncation_side length_penalty top_logprobs"
)
"""They change no token: names, hints, and options of what is refused itself."""
_HONOURED = frozenset(
    " ".join((_PROMPT, _LENGTH, _ANSWER, _HARMLESS, "temperature top_p top_k seed")).split()
)

_ONE = "one prompt's KV goes to the node, which answers it once"
_TEXT = "TileRT returns tokens, and only vLLM parses them"
_STOPS = "a node ends at the model's own end tokens only"
_PICKS = "a node draws by temperature, top_p and top_k only"
_SHOWS = "a node reports no probabilities"
_CANNOT = {
    **dict.fromkeys(("n", "best_of", "use_beam_search"), _ONE),
    **dict.fromkeys(("tools", "tool_choice", "functions", "response_format"), _TEXT),
    **dict.fromkeys(("stop", "stop_token_ids", "min_tokens"), _STOPS),
    **dict.fromkeys(
        (
            *("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
            *("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs"),
        ),
        _PICKS,
    ),
    **dict.fromkeys(("logprobs", "prompt_logprobs", "logprob_token_ids"), _SHOWS),
    "echo": "the prompt's text is not repeated",
}
_NEUTRAL: dict[str, object] = {"n": 1, "best_of": 1, "tool_choice": "none"} | {
    **{name: value for name, value in NEUTRAL.items() if name in _CANNOT},
    **dict.fromkeys(("min_tokens", "presence_penalty", "frequency_penalty"), 0),
    "spaces_between_special_tokens": True,
}
"""Values beside null, false and the empty ones that ask for nothing."""


def cannot(kind: Kind, body: Body, single: bool, sampling: Sampling) -> str:
    """Why the request cannot be decoded by TileRT, naming the field; empty if it can."""
    if not single:
        return f'"prompt" has several prompts: {_ONE}'
    if kind is Kind.COMPLETIONS and body.get("suffix"):
        return '"suffix": a node fills in no middles'
    for name, value in body.items():
        if name in _HONOURED or _asks_for_nothing(name, value):
            continue
        return f'"{name}": {_CANNOT.get(name, "it is not known to be honoured by TileRT")}'
    for name, neutral in NEUTRAL.items():
        # Also what the model's own defaults say.
        if name in _CANNOT and sampling.values[name] != neutral:
            return f'"{name}" is {sampling.values[name]:g}: {_CANNOT[name]}'
    if sampling.values["top_k"] > TOP_K_MAX:
        return f'"top_k" is {sampling.values["top_k"]:g}: a node honours up to {TOP_K_MAX}'
    if body.get("seed") is not None and not sampling.greedy:
        return '"seed": a node draws from a seed of its own'
    return ""


def _asks_for_nothing(name: str, value: object) -> bool:
    if value is None or _NEUTRAL.get(name) is True:
        return value is None or value is True
    if value is False or value == [] or value == {} or value == "":
        return True
    if name == "response_format":
        return isinstance(value, dict) and value.get("type") == "text"
    return name in _NEUTRAL and value == _NEUTRAL[name]
