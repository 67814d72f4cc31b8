"""A model that has only a shape: configuration and tokenizer, for ``--load-format dummy``.

Times and bytes are those of a real model of that shape. What it answers means nothing, so outputs
are compared elsewhere, with saved random weights (``equal_outputs.py``).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 128_256
POSITIONS = 131_072
_LLAMA: dict[str, dict[str, int]] = {
    "llama8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "llama1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
}
SHAPES = tuple(_LLAMA)


def shape_model(folder: Path, shape: str) -> Path:
    """Write the model of this ``shape`` into ``folder``; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **_LLAMA[shape],
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"t{number}": number for number in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t2"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    wrapper = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "t2",
        "bos_token": "t0",
        "eos_token": "t1",
        "model_max_length": POSITIONS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(wrapper))
    return folder
