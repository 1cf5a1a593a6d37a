"""The second launch of a stream whose streamed rows several workgroups share: parts merged.

Each part is a result of its own, over the streamed rows of one workgroup. Sums add up; results of
a softmax are weighted by the log-sum-exps of the parts. The order is fixed, so are the bits.
Roofline: bandwidth, parts are read once; mostly it is as short as a launch can be.
"""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.operands import element, in_elements
from engine.kernels.streaming import Stream
from engine.kernels.wgsl import Kernel, bindings, linear_grid, linear_main


def partial(s: Stream) -> Stream:
    """The stream whose results are the parts: dense, with their log-sum-exps."""
    inputs = {name: place for name, place in s.places.items() if name in s.matrices}
    return replace(s, places=inputs, writes_lse=s.softmax)


def part_shapes(s: Stream, splits: int) -> list[tuple[int, ...]]:
    """Shapes of what `partial` writes, in binding order."""
    rows = splits * s.over.heads * s.over.rows
    lse: list[tuple[int, ...]] = [(rows,)] if s.softmax else []
    return [*((rows, s.over.width) for _ in s.results), *lse]


def merged(s: Stream, splits: int) -> Kernel:
    """The results of a stream, and the log-sum-exp if it writes that, from those of `partial`."""
    o = s.over
    kind, columns, rows = element(o.width), in_elements(o.width), o.heads * o.rows
    lines = [f"let row = i / {columns}u;"]
    factors = [""] * splits
    if s.softmax:
        lines += [f"let lse{n} = lse_parts[{n * rows}u + row];" for n in range(splits)]
        top = "lse0"
        for n in range(1, splits):
            top = f"max({top}, lse{n})"
        lines.append(f"let top = {top};")
        lines += [f"let part{n} = exp(lse{n} - top);" for n in range(splits)]
        lines.append(f"let total = {' + '.join(f'part{n}' for n in range(splits))};")
        factors = [f"part{n} / total * " for n in range(splits)]
    for name in s.results:
        terms = [f"{factors[n]}{name}_parts[i + {n * rows * columns}u]" for n in range(splits)]
        place = s.places.get(name)
        begin = place.offset("row", o.width, o.width // columns) if place else ""
        at = f"{begin} + i % {columns}u" if place else "i"
        lines.append(f"{name}[{at}] = {' + '.join(terms)};")
    if s.writes_lse:
        lines.append(f"if (i % {columns}u == 0u) {{ lse[row] = top + log(total); }}")
    reads = [(f"{name}_parts", kind) for name in s.results]
    reads += [("lse_parts", "f32")] if s.softmax else []
    writes = [(name, kind) for name in s.results] + ([("lse", "f32")] if s.writes_lse else [])
    threads = rows * columns
    source = bindings(reads, writes) + linear_main(threads, 64, "\n".join(lines))
    flops = 2 * splits * len(s.results) * rows * o.width
    return Kernel(f"{s.label}_merge", source, linear_grid(threads, 64), flops)
