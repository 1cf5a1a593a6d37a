"""Options of the generate command, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from app.config import UsageError
from engine.implementations import Choice
from engine.specialize import Contract
from engine.storage import Storage


@dataclass(frozen=True)
class GenerateConfig:
    """Continue a text with SmolLM2 or another model of the LLaMA kind, token by token.

    The continuation goes to stdout as it comes, speeds to stderr. Ctrl-C ends it.
    """

    text: Annotated[str, tyro.conf.Positional]
    """What to continue."""
    model: Path
    """Folder of Hugging Face: config.json, model.safetensors (f32, bf16 or f16), tokenizer.json."""
    tokens: int = 100
    """Most tokens to add."""
    temperature: float = 0.0
    """0 always takes the likeliest token; 1 draws as the model says, more is more surprising."""
    top_k: int | None = None
    """Draw from so many likeliest tokens only."""
    top_p: float = 1.0
    """Draw from the likeliest tokens only that together have this probability."""
    seed: int = 0
    """Seed of the draws."""
    json: bool = False
    """Print one line of JSON at the end instead of the text."""
    contract: Contract = "strict"
    """Arithmetic: strict f32, or products that round their factors to 11 bits on devices with
    matrix units, which are faster (--gpu dawn)."""
    storage: Storage = "f32"
    """How matrices of weights lie in memory: f16 is half the bytes, and rounds them to 11 bits."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        if self.tokens < 1:
            raise UsageError(f"--tokens must be at least 1, not {self.tokens}")
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"--temperature must be at least 0, not {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k must be at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must be above 0 and at most 1, not {self.top_p:g}")
        if self.seed < 0:
            raise UsageError(f"--seed must be at least 0, not {self.seed}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1):
            raise UsageError("--top-k and --top-p need a --temperature above 0")
