"""Self-supervised training of the encoder: dense self-distillation with masked patches.

A student sees two views of each photograph with some patches masked; a teacher, the moving average
of the student, sees the same views whole. The student's token at a patch shall be assigned to the
prototypes as the teacher's token is at the same place of the photograph, in the other view or
behind the mask: so tokens depend on what is there, not on where the patch grid lies. Assignments of
the teacher are balanced over prototypes by Sinkhorn's iteration (Caron et al. 2020), which keeps
them from collapsing; masked prediction follows iBOT (Zhou et al. 2022), the teacher and sharpening
DINO (Caron et al. 2021). A linear map from the student's visible tokens back to their pixels keeps
what a decoder needs in the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine import ops
from engine.averaging import declare_averages, update_averages
from engine.graph import Graph, Initializer, Node
from engine.optim import Optimizer, minimize
from models.dinov3 import DEFAULT_DEPTH, PATCH, encode, patch_tokens
from models.layouts import Layout
from models.nn import Scope, layer_norm, linear, normal
from models.vision import IMAGE

TEACHER = "teacher"
HEAD_HIDDEN, HEAD_WIDTH = 512, 128
ROUNDS = 3
"""Of Sinkhorn's iteration."""
EPS = 1e-6


@dataclass(frozen=True)
class Objective:
    """What the student learns."""

    prototypes: int = 512
    student_temperature: float = 0.1
    teacher_temperature: float = 0.04
    """Lower: sharper assignments."""
    reconstruction: float = 20.0
    """Weight of the pixels' mean squared error (in 0..1) beside the cross-entropy (in nats)."""


@dataclass(frozen=True)
class Averaged(Scope):
    """Parameters that are the moving averages of others, declared before."""

    def parameter(
        self, name: str, shape: Sequence[int], init: Initializer, layout: Layout | None = None
    ) -> Node:
        """The average that was declared under this name."""
        return self.graph.source(self._join(name))


def pretraining_graph(
    optimizer: Optimizer,
    objective: Objective,
    *,
    views: int,
    depth: int = DEFAULT_DEPTH,
    size: int = IMAGE,
) -> Graph:
    """One learning step on `views` images of size x size pixels, with n = (size/16)^2 patches each.

    Inputs: "image" f32 [views, size, size, 3] in 0..1; "masked" f32 [views, n, 1], 1 where the
    student sees no patch; "match" u32 [views * n], for each of the student's tokens the teacher's
    at the same place, counted over all views; "weight" f32 [views * n], how much that counts; and
    those of `engine.optim` and `engine.averaging`.

    Output "losses" [3]: weighted sum, cross-entropy in nats, mean squared error of visible pixels.
    Effects: the parameters are updated, and then the averages of all of them, the state
    "teacher.NAME". What is learnt beside the encoder's parameters: its "norm", "head", "pixels".
    """
    graph = Graph()
    image = graph.input("image", (views, size, size, 3))
    patches = (size // PATCH) ** 2
    masked = graph.input("masked", (views, patches, 1))
    match = graph.input("match", (views * patches,), "u32")
    weight = graph.input("weight", (views * patches,))

    student = Scope(graph)
    tokens = patch_tokens(encode(image, depth, scope=student, masked=masked))
    logits = assign(student, tokens, objective.prototypes, objective.student_temperature)
    painted = linear(student / "pixels", tokens, 3 * PATCH**2)

    declare_averages(graph, TEACHER)
    teacher = Averaged(graph, TEACHER)
    seen = patch_tokens(encode(image, depth, scope=teacher))
    goal = balanced(assign(teacher, seen, objective.prototypes, objective.teacher_temperature))

    distillation = _cross_entropy(logits, ops.gather(goal, match), weight)
    original = ops.reshape(ops.unfold(image, PATCH, stride=PATCH), painted.shape)
    reconstruction = _visible_error(painted, original, masked)
    loss = ops.add(distillation, ops.affine(reconstruction, objective.reconstruction))
    graph.output("losses", ops.concatenate([loss, distillation, reconstruction], 0))
    minimize(loss, optimizer)
    update_averages(graph, TEACHER)
    return graph


def assign(s: Scope, tokens: Node, prototypes: int, temperature: float) -> Node:
    """Tokens [..., n, 384] -> logits [all tokens, prototypes]: cosines divided by a temperature."""
    x = layer_norm(s / "norm", ops.reshape(tokens, (-1, tokens.shape[-1])))
    x = ops.gelu(linear(s / "head.fc1", x, HEAD_HIDDEN))
    x = linear(s / "head.fc2", x, HEAD_WIDTH)
    centres = (s / "head").parameter("prototypes", (prototypes, HEAD_WIDTH), normal(1.0))
    # Root-mean-square normalisation is Euclidean, but for the square root of the width.
    directions = (ops.rms_norm(value, eps=EPS) for value in (x, centres))
    return ops.affine(ops.linear(*directions), 1 / (HEAD_WIDTH * temperature))


def balanced(logits: Node, rounds: int = ROUNDS) -> Node:
    """Logits [n, prototypes] -> assignments: rows add up to 1, columns nearly to equal sums.

    Sinkhorn and Knopp's iteration, by factors of rows and columns. The largest logits of all rows
    must be of similar size, as cosines over a temperature are, for f32 to hold the exponentials.
    """
    n, prototypes = logits.shape
    highest = ops.reshape(ops.reduce_max(logits, (0, 1)), (1, 1))
    kernel = ops.unary("exp", ops.sub(logits, highest))
    rows = logits.graph.constant("sinkhorn.rows", np.ones((n, 1), np.float32))
    for _ in range(rounds):
        columns = ops.unary("recip", ops.matmul(kernel, rows, transpose_a=True))
        rows = ops.unary("recip", ops.matmul(kernel, columns))
    return ops.mul(ops.mul(kernel, rows), ops.reshape(columns, (1, prototypes)))


def _cross_entropy(logits: Node, goal: Node, weight: Node) -> Node:
    """Weighted mean over rows of -sum(goal * log softmax(logits)); 0 if no row counts."""
    total = ops.affine(ops.reduce_sum(weight, (0,)), 1.0, EPS)
    share = ops.reshape(ops.div(weight, total), (-1, 1))
    terms = ops.mul(ops.mul(goal, share), ops.log_softmax(logits))
    return ops.reduce_sum(terms, (0, 1), scale=-1.0)


def _visible_error(painted: Node, original: Node, masked: Node) -> Node:
    """Mean squared difference over the pixels of patches that are not masked."""
    visible = ops.affine(masked, -1.0, 1.0)
    total = ops.affine(ops.reduce_sum(visible, range(3)), painted.shape[-1], EPS)
    errors = ops.mul(ops.square(ops.sub(painted, original)), visible)
    return ops.div(ops.reduce_sum(errors, range(3)), total)
