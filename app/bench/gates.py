"""Whether figures are right: how far they are from a reference's, and how far they may be.

Two references: another runner at the same size, whose output is there in full, and a reference
file, which has a sample of it. Gradients are judged tensor by tensor in both cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from app.bench.golden import Golden, Gradient, sample

FLOOR = 1e-6
"""Gradients are compared relative to at least this share of their norm over all parameters."""

Gradients = Mapping[str, Gradient]


@dataclass(frozen=True)
class Limits:
    """Largest relative errors that pass."""

    output: float
    loss: float
    total: float
    """Of the norm of all gradients together."""
    tensor: float
    """Of each gradient's norm and probe."""


LIMITS = {
    "strict": Limits(output=1e-4, loss=1e-3, total=1e-3, tensor=0.01),
    # Operands of products are rounded to 10 or 11 bits, on either side or on both.
    "accelerated": Limits(output=0.01, loss=0.01, total=0.02, tensor=0.05),
}
"""By contract."""


@dataclass(frozen=True)
class Finding:
    """How far one quantity is from the reference, relatively; NaN if it is not finite."""

    what: str
    error: float
    limit: float

    @property
    def good(self) -> bool:
        """Whether the error is tolerable; NaN is not."""
        return self.error <= self.limit

    def __str__(self) -> str:
        return f"{self.what} is off by {self.error:.1e}, allowed {self.limit:g}"


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference relative to the norm of what is wanted; NaN if not finite."""
    wanted = want.astype(np.float64).ravel()
    difference = got.astype(np.float64).ravel() - wanted
    return _relative(float(np.linalg.norm(difference)), float(np.linalg.norm(wanted)))


def judge_output(got: np.ndarray, want: np.ndarray | Golden, limits: Limits) -> list[Finding]:
    """Of an inference against another runner's whole output or a reference file.

    Raises ValueError when the shapes differ.
    """
    shape = want.output_shape if isinstance(want, Golden) else want.shape
    if got.shape != shape:
        raise ValueError(f"output is {got.shape}, not {shape}")
    if isinstance(want, np.ndarray):
        return [Finding("output", relative_l2(got, want), limits.output)]
    norm = float(np.linalg.norm(got.astype(np.float64)))
    error = relative_l2(sample(got, want.sample.size), want.sample)
    return [
        Finding("output sample", error, limits.output),
        Finding(
            "output norm", _relative(abs(norm - want.output_l2), want.output_l2), limits.output
        ),
    ]


def judge_training(
    loss: float, got: Gradients, wanted_loss: float, want: Gradients, limits: Limits
) -> list[Finding]:
    """Loss, total norm, and each gradient's norm and probe.

    Raises ValueError when only one side has a gradient.
    """
    if got.keys() != want.keys():
        odd = sorted(got.keys() ^ want.keys())
        raise ValueError(f"only one side has gradients of {', '.join(odd)}")
    return [*_judge_training(loss, got, wanted_loss, want, limits)]


def _judge_training(
    loss: float, got: Gradients, wanted_loss: float, want: Gradients, limits: Limits
) -> Iterator[Finding]:
    yield Finding("loss", _relative(abs(loss - wanted_loss), abs(wanted_loss)), limits.loss)
    total = total_norm(want)
    yield Finding("gradient norm", _relative(abs(total_norm(got) - total), total), limits.total)
    for name, wanted in want.items():
        mine, scale = got[name], max(wanted.norm, FLOOR * total)
        error = _relative(abs(mine.norm - wanted.norm), scale)
        yield Finding(f"norm of {name}", error, limits.tensor)
        # An error unrelated to the probe moves it by 1 / sqrt(3) of its norm; this is 3 sigma.
        error = _relative(abs(mine.probe - wanted.probe), sqrt(3) * scale)
        yield Finding(f"probe of {name}", error, limits.tensor)


def total_norm(gradients: Gradients) -> float:
    """Norm of the gradient over all parameters."""
    return sqrt(sum(g.norm**2 for g in gradients.values()))


def _relative(error: float, scale: float) -> float:
    """Two zeros agree; anything else differs from zero without bound."""
    if scale == 0:
        return 0.0 if error == 0 else float("nan")
    return error / scale


# What has been published about these workloads, looser: for comparison only

PAPER_FORWARD, PAPER_TRAINING = 0.01, 0.05


def paper_output(got: np.ndarray, want: np.ndarray | Golden) -> list[Finding]:
    """The published gate of outputs: 256 samples within 1 %."""
    wanted = want.sample if isinstance(want, Golden) else sample(want)
    mine = sample(got, wanted.size)
    return [Finding("256 samples", relative_l2(mine, wanted), PAPER_FORWARD)]


def paper_training(
    loss: float, got: Gradients, wanted_loss: float, want: Gradients
) -> list[Finding]:
    """The published gates of training: loss within 1 %, the total norm and the vector of norms
    within 5 %. Gate and up projections of an MLP count as one tensor there.
    """
    scale = max(abs(loss), abs(wanted_loss), 1e-12)
    total = total_norm(want)
    mine, wanted = _merged(got), _merged(want)
    difference = sqrt(sum((mine.get(name, 0.0) - norm) ** 2 for name, norm in wanted.items()))
    return [
        Finding("loss", abs(loss - wanted_loss) / scale, PAPER_FORWARD),
        Finding("gradient norm", abs(total_norm(got) - total) / max(total, 1e-12), PAPER_TRAINING),
        Finding("vector of norms", _relative(difference, total), PAPER_TRAINING),
    ]


def _merged(gradients: Gradients) -> dict[str, float]:
    squares: dict[str, float] = {}
    for name, gradient in gradients.items():
        key = name.replace("gate_proj", "gate+up").replace("up_proj", "gate+up")
        squares[key] = squares.get(key, 0.0) + gradient.norm**2
    return {name: sqrt(value) for name, value in squares.items()}


def worst(findings: Sequence[Finding]) -> Finding:
    """The one nearest to its limit, or furthest beyond; what is not finite comes first."""
    return max(findings, key=lambda f: np.inf if np.isnan(f.error) else f.error / f.limit)
