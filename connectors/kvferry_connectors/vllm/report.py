"""What a request says of its reuse, in one line."""

from __future__ import annotations

from kvferry.core.events import RequestEnded


def reuse_text(pulled: int, source: str, ms: float, miss: str, local: int) -> str:
    """``pulled=2039 from=d0 31ms``, ``miss=diverged@1536`` or ``local=2039``."""
    if pulled:
        return f"pulled={pulled} from={source} {ms:.0f}ms"
    if miss and miss != "local":
        return f"miss={miss}"
    return f"local={local}" if local else "miss=nothing_held"


def log_line(ended: RequestEnded) -> str:
    """The engine's one log line for a request."""
    text = reuse_text(
        ended.pulled_tokens, ended.source, ended.pull_ms, ended.miss, ended.local_tokens
    )
    name = f" id={ended.external_id}" if ended.external_id else ""
    return (
        f"kvferry request={ended.request}{name} {text} prompt={ended.prompt_tokens} "
        f"local={ended.local_tokens} pulled={ended.pulled_tokens} "
        f"computed={ended.computed_tokens} output={ended.output_tokens} {ended.outcome}"
    )
