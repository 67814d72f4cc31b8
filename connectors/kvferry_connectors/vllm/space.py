"""What makes two engines' KV interchangeable: the space's fingerprint, and what limits sharing."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 4096
SAMPLES_PER_FILE = 16
HASHES_WITH_STRINGS = ("sha256_cbor",)
"""Algorithms whose hash of a string is the same in every process."""


def weights_name(model: str, revision: str | None, hf_config: Any) -> str:
    """A name for the weights: two models of one shape must not share KV.

    A folder is named by its base name and a digest over its configuration and samples of its
    weight files (reading them whole would take minutes); a hub name by its revision.
    """
    folder = Path(model)
    if not folder.is_dir():
        commit = getattr(hf_config, "_commit_hash", None) or revision or "main"
        return f"{model}@{str(commit)[:12]}"
    digest = hashlib.sha256()
    files = sorted(
        f for f in folder.iterdir() if f.suffix in (".safetensors", ".bin", ".pt", ".gguf")
    )
    config = folder / "config.json"
    for path in [config, *files]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as handle:
            for i in range(SAMPLES_PER_FILE):
                handle.seek(size * i // SAMPLES_PER_FILE)
                digest.update(handle.read(SAMPLE_BYTES))
    return f"{folder.name}@{digest.hexdigest()[:12]}"


def scheduler_components(vllm_config: Any, probe: bytes, model_id: str) -> dict[str, str]:
    """The parts of the fingerprint that the scheduler's process knows.

    ``probe`` is a fixed block hashed by the engine's own function: it covers the algorithm, the
    seed and the hash block size at once.
    """
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    parallel = vllm_config.parallel_config
    hf = model.hf_text_config
    rope = {
        key: getattr(hf, key, None)
        for key in ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
    }
    speculative = vllm_config.speculative_config
    drafter = ""
    if speculative is not None:
        draft = getattr(speculative, "draft_model_config", None)
        drafter = f"{speculative.method}:{getattr(draft, 'model', '')}"
    return {
        "model": model_id or weights_name(model.model, model.revision, model.hf_config),
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(cache.cache_dtype),
        "quantization": str(model.quantization or "none"),
        "block_size": str(cache.block_size),
        "tensor_parallel": str(parallel.tensor_parallel_size),
        "pipeline_parallel": str(parallel.pipeline_parallel_size),
        "context_parallel": str(getattr(parallel, "decode_context_parallel_size", 1)),
        "rope": hashlib.sha256(json.dumps(rope, sort_keys=True, default=str).encode()).hexdigest()[
            :12
        ],
        "drafter": drafter or "none",
        "hash_scheme": f"{cache.prefix_caching_hash_algo}:{probe.hex()[:16]}",
    }


def worker_components(vllm_config: Any, kv_caches: dict[str, Any]) -> dict[str, str]:
    """The parts that only a worker knows: layout, attention backend, instruction set."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backend

    first = next(iter(kv_caches.values()))
    element = str(first.dtype).removeprefix("torch.")
    shape = "x".join(str(n) for n in first.shape[1:])
    order = sorted(range(first.dim()), key=lambda axis: -first.stride(axis))
    found = {
        "layout": f"{element}[{shape}]/{''.join(str(axis) for axis in order)}x{len(kv_caches)}",
        "attention": get_current_attn_backend(vllm_config).get_name(),
    }
    if first.device.type == "cpu":
        found["isa"] = cpu_isa()
    return found


def cpu_isa() -> str:
    """The instruction set that decides how vLLM packs keys and values inside a page on the CPU."""
    try:
        flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text().split("flags", 1)[1]))
    except (OSError, IndexError):
        return os.uname().machine
    known = ("amx_tile", "avx512_bf16", "avx512f", "avx2")
    return f"{os.uname().machine}-{next((name for name in known if name in flags), 'base')}"


def fingerprint(components: dict[str, str]) -> str:
    """Twelve hex digits over all components."""
    joined = json.dumps(components, sort_keys=True).encode()
    return hashlib.sha256(joined).hexdigest()[:12]


def space_id(components: dict[str, str]) -> str:
    """The space's name: readable, and different where any component differs."""
    model = components["model"].split("@")[0].rstrip("/").split("/")[-1].lower()
    slug = re.sub(r"[^a-z0-9]+", "-", model).strip("-")[:24] or "model"
    return f"{slug}-{fingerprint(components)}"


def limits(vllm_config: Any) -> tuple[str, ...]:
    """What keeps this engine from sharing all it could, in plain words with the cure."""
    found = []
    cache = vllm_config.cache_config
    scheduler = vllm_config.scheduler_config
    if not cache.enable_prefix_caching:
        found.append(
            "prefix caching is off: finished blocks are soon reused and nothing pulled is kept; "
            "start vLLM with --enable-prefix-caching"
        )
    algorithm = str(cache.prefix_caching_hash_algo)
    if algorithm.startswith("xxhash"):
        if os.environ.get("PYTHONHASHSEED") is None:
            found.append(
                f"--prefix-caching-hash-algo {algorithm} draws a random seed in each process: no "
                "two engines agree; use sha256_cbor, or set the same PYTHONHASHSEED everywhere"
            )
    elif algorithm not in HASHES_WITH_STRINGS:
        found.append(
            f"--prefix-caching-hash-algo {algorithm} is not reproducible between processes for "
            "requests with LoRA, media, cache_salt or prompt embeddings: those are not shared; "
            "use --prefix-caching-hash-algo sha256_cbor on every engine"
        )
    longest = scheduler.long_prefill_token_threshold
    budget = scheduler.max_num_batched_tokens
    if not longest or longest >= budget:
        found.append(
            "a long prefill can take a whole step, and no pull starts meanwhile; set "
            f"--long-prefill-token-threshold below --max-num-batched-tokens ({budget})"
        )
    return tuple(found)


def shareable(request: Any, algorithm: str) -> bool:
    """Whether the request's hashes mean the same in another process.

    vLLM's default ``sha256`` hashes a pickle, whose bytes depend on the identity of the strings
    in it (research on vLLM 0.32 reproduced this), so requests with string keys stay at home.
    """
    if algorithm in HASHES_WITH_STRINGS:
        return True
    return not (
        request.lora_request
        or request.mm_features
        or request.cache_salt
        or getattr(request, "prompt_embeds", None) is not None
    )
