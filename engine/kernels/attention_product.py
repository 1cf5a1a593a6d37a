"""The gradient of queries as plain products of attention's kept weights and keys.

Per head dq = scale ds k, where `engine.kernels.attention.grad_keys` has kept scale ds, by blocks of
keys. Heads are few and narrow, so the keys are cut into parts: each part of each head is a product
of its own, and parts are summed like those of `streaming_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, lcm

from engine.kernels.attention import AttentionShape
from engine.kernels.heads import Place
from engine.kernels.matmul import matmul
from engine.kernels.operands import Guard, element, gather, in_elements, is_wide
from engine.kernels.product import Access, MatmulShape
from engine.kernels.wgsl import Kernel
from engine.specialize import MatmulChoice


@dataclass(frozen=True)
class Blocks:
    """How the products of all heads meet the keys: in `count` blocks of `size`.

    Batch b is about head b % heads and the `share` blocks from b // heads * share on. A block has
    its keys in the order 0, size / 4, size / 2, 3 size / 4, 1, .., in which they were kept.
    """

    heads: int
    count: int
    size: int
    share: int

    @property
    def parts(self) -> int:
        """Batches of a head."""
        return ceil(self.count / self.share)

    @property
    def columns(self) -> int:
        """Keys of a batch, with those beyond the last one."""
        return self.share * self.size

    def locate(self, column: str, per_block: int) -> list[str]:
        """WGSL that sets `head`, and `block` and `slot` for one of so many columns per block."""
        return [
            f"let head = base % {self.heads}u;",
            f"let block = base / {self.heads}u * {self.share}u + {column} / {per_block}u;",
            f"let slot = {column} % {per_block}u;",
        ]


@dataclass(frozen=True)
class KeptRows:
    """Reader of kept weights, a row per query; zero beyond the last block."""

    queries: int
    blocks: Blocks

    @property
    def element(self) -> str:
        """See Reader."""
        return "vec4<f32>"

    def base(self, batch: str) -> str:
        """See Reader."""
        return batch

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        b, quads = self.blocks, self.blocks.size // 4
        first = f"(head * {b.count}u + block) * {self.queries}u"
        lines = [*b.locate("c", quads), f"let at = ({first} + r) * {quads}u + slot;"]
        inside = f"block < {b.count}u" if b.count % b.share else ""
        shape, guards = (self.queries, b.columns), (row_guard, column_guard)
        return gather(name, shape, guards, lines, wide=True, inside=inside)


@dataclass(frozen=True)
class KeyRows:
    """Reader of the keys' rows [width] at `place`, in the order of their blocks; zero beyond the
    last key. `group` heads have one head of the matrix in common.
    """

    place: Place
    width: int
    group: int
    blocks: Blocks

    @property
    def element(self) -> str:
        """See Reader."""
        return element(self.width)

    def base(self, batch: str) -> str:
        """See Reader."""
        return batch

    def load(self, name: str, row_guard: Guard, column_guard: Guard) -> str:
        """See Reader."""
        b, keys, scale = self.blocks, self.place.rows, self.width // in_elements(self.width)
        begin = self.place.begin(f"(head / {self.group}u)", self.width, scale)
        order = f"slot % 4u * {b.size // 4}u + slot / 4u"
        lines = [
            *b.locate("r", b.size),
            f"let key = block * {b.size}u + {order};",
            f"let at = {begin} + key * {self.place.columns // scale}u + c;",
        ]
        inside = f"key < {keys}u" if keys % b.columns else ""
        shape, guards = (b.columns, self.width), (row_guard, column_guard)
        return gather(name, shape, guards, lines, wide=is_wide(self.width), inside=inside)


def cut_keys(s: AttentionShape, choice: MatmulChoice, size: int) -> Blocks:
    """Blocks of `size` keys in at most choice.split_k parts, of whole steps and none empty."""
    count = ceil(s.keys / size)
    step = lcm(size, choice.step_k) // size
    return Blocks(s.heads, count, size, ceil(ceil(count / choice.split_k) / step) * step)


def grad_queries_product(s: AttentionShape, choice: MatmulChoice, blocks: Blocks) -> Kernel:
    """Parts [blocks.parts, heads, queries, width] of dq from kept scale ds and k."""
    batches, columns = blocks.parts * s.heads, blocks.columns
    keys = dict(s.places).get("k", Place(1, s.keys, s.width, 0))
    access = Access(
        name="attention_grad_q_product",
        a=KeptRows(s.queries, blocks),
        b=KeyRows(keys, s.width, s.group, blocks),
        flops=2 * s.heads * s.queries * s.keys * s.width,
    )
    shape = MatmulShape(batches, s.queries, s.width, columns)
    (kernel,) = matmul(shape, replace(choice, split_k=1), access=access)
    return kernel
