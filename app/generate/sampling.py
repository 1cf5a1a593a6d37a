"""Which token comes next: the likeliest, or one drawn from the likely ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0: the likeliest; `top_k` None and `top_p` 1: no token is left out."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def choose(self, logits: np.ndarray, rng: np.random.Generator) -> int:
        """A token, given logits [vocabulary], which must be finite."""
        if self.temperature == 0:
            return int(np.argmax(logits))
        return int(rng.choice(len(logits), p=self.probabilities(logits)))

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """What is drawn from, float64 [vocabulary], at a temperature above 0.

        `top_p` keeps the fewest likeliest tokens that have as much together, after `top_k`. Of
        tokens that are equally likely all stay, or none.
        """
        p = np.exp((logits.astype(np.float64) - logits.max()) / self.temperature)
        if self.top_k is not None and self.top_k < len(p):
            p[p < np.partition(p, -self.top_k)[-self.top_k]] = 0.0
        p /= p.sum()
        if self.top_p < 1:
            falling = np.sort(p)[::-1]
            kept = int(np.searchsorted(np.cumsum(falling), self.top_p))
            p[p < falling[min(kept, len(p) - 1)]] = 0.0
            p /= p.sum()
        return p
