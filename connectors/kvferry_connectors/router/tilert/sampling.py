"""How tokens are drawn: the client's wishes over the model's defaults, the same for P and the node.

vLLM takes what a request leaves out from the model's ``generation_config.json``; a TileRT node
knows no such file. P draws the first token and the node all others, so the router resolves the
values once and tells them to both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvferry.errors import ConfigError
from kvferry_connectors.router.bodies import Body
from kvferry_connectors.router.errors import bad_request

GREEDY_BELOW = 1e-5
"""TileRT and vLLM both take a lower temperature for 0."""
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_TAKEN_BY_NODE = ("temperature", "top_p", "top_k")


@dataclass(frozen=True)
class Sampling:
    """Resolved values of :data:`NEUTRAL`'s names, and whether to go on behind the end token."""

    values: dict[str, float]
    ignore_eos: bool

    @property
    def greedy(self) -> bool:
        return self.values["temperature"] < GREEDY_BELOW

    def for_prefill(self) -> dict[str, float]:
        return self.values

    def for_node(self) -> dict[str, float | bool]:
        """What a node can be told; the others are neutral by then."""
        told: dict[str, float | bool] = {name: self.values[name] for name in _TAKEN_BY_NODE}
        return told | {"ignore_eos": True} if self.ignore_eos else told


def read_defaults(folder: Path) -> dict[str, float]:
    """The model's defaults, as far as its folder has a ``generation_config.json``.

    Raises:
        ConfigError: the file is there and cannot be read.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return dict(NEUTRAL)
    try:
        found = json.loads(path.read_text())
        given = {name: found[name] for name in NEUTRAL if found.get(name) is not None}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): repair or remove it") from error
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{path}: {name} is {value!r}, which is no number")
    return NEUTRAL | given


def resolve(body: Body, defaults: dict[str, float]) -> Sampling:
    """The values that count for a request.

    Raises:
        Answered: with 400, where one has the wrong type.
    """
    values = dict(defaults)
    for name in NEUTRAL:
        given = body.get(name)
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise bad_request(f'"{name}" is {given!r}: it must be a number')
        values[name] = given
    ignore_eos = body.get("ignore_eos") or False
    if not isinstance(ignore_eos, bool):
        raise bad_request(f'"ignore_eos" is {ignore_eos!r}: it must be true or false')
    return Sampling(values, ignore_eos)
