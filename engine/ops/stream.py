"""Lowering of kernels in which rows stream past others: one launch, or parts and their merge."""

from __future__ import annotations

from collections.abc import Sequence

from engine.kernels.attention import kernel
from engine.kernels.epilogue import PLAIN
from engine.kernels.operands import in_elements
from engine.kernels.splits import Splits
from engine.kernels.streaming import Stream
from engine.kernels.streaming_parts import merged, part_shapes, partial
from engine.lower import Lowering, Operand, Unfinished
from engine.specialize import DeviceFacts
from engine.specialize_attention import choose_attention


def lower_stream(to: Lowering, program: Stream, reads: Sequence[Operand], *writes: Operand) -> None:
    """Append the launches of a program; operands are in the binding order of its kernel."""
    choice = choose_attention(program.key, to.facts)
    if choice.splits == 1:
        to.dispatch(kernel(program, choice), reads, *writes)
        return
    parts = [to.scratch(shape) for shape in part_shapes(program, choice.splits)]
    # Each part keeps weights of its own.
    kept = writes[-1:] if program.kept else ()
    to.dispatch(kernel(partial(program), choice), reads, *parts, *kept)
    finish_parts(to, program, choice.splits, parts, writes[: len(writes) - len(kept)])


def finish_parts(
    to: Lowering, program: Stream, count: int, parts: Sequence[int], writes: Sequence[Operand]
) -> None:
    """Results of a program from `count` parts of them; whoever reads sums may finish these."""
    if program.softmax or any(name in program.places for name in program.results):
        to.dispatch(merged(program, count), parts, *writes)
        return
    over = program.over
    splits = Splits(count, over.heads * over.rows, over.width, PLAIN)
    for part, result in zip(parts, writes, strict=True):
        to.finish_later(Unfinished(splits.kernel(), (part,), splits), result)


def sum_lanes(width: int, facts: DeviceFacts) -> int:
    """Invocations that share one row of a head in `engine.kernels.attention.delta`."""
    return 1 if facts.is_cpu else min(32, 1 << (in_elements(width) - 1).bit_length())
