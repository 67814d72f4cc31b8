"""A small Llama with saved random weights, so that a demo and tests need no download.

Saved weights and not vLLM's ``--load-format dummy``: dummy weights are so small that the output
does not depend on the prompt, and a comparison of outputs would pass whatever happened.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

VOCABULARY = 512
MARKER = "kvferry-shape.json"
"""In a model's folder once the model is whole: the shape that it was made with."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRAINING_LINES = [
    "The ferry crosses the river in both directions and carries what the other side needs.",
    "A prefill engine builds the cache of a prompt; a decode engine generates from it.",
    "0 1 2 3 4 5 6 7 8 9 blocks, tokens, layers, heads, leases, offers, pins, transfers, plans",
    "What is slow or missing, and why? Ask the ledger: it records every move of every block.",
] * 4


class Shape(msgspec.Struct, frozen=True):
    """The size of the model."""

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 256
    positions: int = 16_384
    seed: int = 0


TINY = Shape()
"""For tests: 1 KiB of KV a token in float32."""

SMALL = Shape(hidden=512, layers=4, heads=16, kv_heads=2, head_dim=32, mlp=1024)
"""For the demo: on a CPU it is slow enough that recomputing a history can be seen, while its KV
is as small as 2 KiB a token, as the ratio of the two would be on a large model."""


def ensure_model(folder: Path, shape: Shape = TINY) -> Path:
    """Make the model in ``folder`` unless it is there already; returns the folder.

    Raises:
        ImportError: torch, transformers or tokenizers are missing.
    """
    marker = folder / MARKER
    wanted = msgspec.json.encode(shape)
    if marker.is_file() and marker.read_bytes() == wanted:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(folder)
    _save_weights(folder, shape)
    marker.write_bytes(wanted)
    return folder


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trained.train_from_iterator(
        TRAINING_LINES, vocab_size=VOCABULARY, min_frequency=1, special_tokens=special
    )
    raw = folder / "tokenizer.json"
    trained.save(str(raw))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_file=str(raw), eos_token="<|end|>", pad_token="<|end|>"
    )
    wrapped.add_special_tokens({"additional_special_tokens": special[1:]})
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(str(folder))


def _save_weights(folder: Path, shape: Shape) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        torch_dtype="float32",
    )
    torch.manual_seed(shape.seed)
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                # This spread keeps the best and the second-best token apart by 0.01 and more.
                parameter.normal_(0.0, 0.08)
    model.save_pretrained(str(folder), safe_serialization=True)
