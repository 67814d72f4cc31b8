"""A small model with true latent attention and saved random weights, for vLLM on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvferry_connectors.demo.model import VOCABULARY, Shape, ensure_model
from kvferry_connectors.demo.tilert.profile import LAYERS

SPREAD = 0.08
"""Of the weights: the output has to depend on the prompt."""
POSITIONS = 2048


def mla_model(folder: Path) -> Path:
    """A DeepSeek without experts, with the latent and the rotary width of the real ones."""
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    # The tokenizer; the weights are replaced.
    ensure_model(folder, Shape(layers=1, hidden=32, heads=1, kv_heads=1, mlp=32))
    config: Any = DeepseekV3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_shared_experts=1,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=LAYERS,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
        torch_dtype="bfloat16",
        rope_scaling=None,
    )
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, SPREAD)
    model.save_pretrained(str(folder), safe_serialization=True)
    return folder
