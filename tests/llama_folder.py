"""A small random model of the LLaMA kind and its tokenizer, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONTEXT = 72
END = "<|endoftext|>"
CORPUS = ["the frame and the chunk share the queue", "a headset draws two eyes a frame, ninety"]


def tokenizer() -> Tokenizer:
    """Byte-level BPE, as SmolLM2 has it, with a few merges."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS * 4,
        trainers.BpeTrainer(vocab_size=290, special_tokens=[END], initial_alphabet=alphabet),
    )
    return made


def llama(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Save one with weights of a dtype; the model, in float32."""
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    config = transformers.LlamaConfig(
        **{
            "hidden_size": 48,
            "intermediate_size": 76,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "vocab_size": made.get_vocab_size(),
            "max_position_embeddings": CONTEXT,
            "rope_theta": 1e4,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "initializer_range": 0.25,
            **options,
        }
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape).to(dtype))
    model.save_pretrained(folder)
    # Read again: a change of dtype in memory would round the angles of the rotation too.
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
