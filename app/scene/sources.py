"""Where the panels find the network's outputs: ranges of buffers on the renderer's own device."""

from __future__ import annotations

from dataclasses import dataclass

from engine.gpu import BufferRange

__all__ = ["BufferRange", "PanelSources"]


@dataclass(frozen=True)
class PanelSources:
    """Network outputs that the panels show, read where the network wrote them on the same queue.

    `painted` holds f32 [image_size, image_size, 3], sRGB values 0..1. `components` holds f32
    [grid, grid, 3], scaled to about 0..1.
    """

    painted: BufferRange
    components: BufferRange
    image_size: int = 224
    grid: int = 14

    def validate(self, alignment: int) -> None:
        """Raise `ValueError` if a range cannot hold its picture or cannot be bound."""
        for name, part, side in (
            ("painted", self.painted, self.image_size),
            ("components", self.components, self.grid),
        ):
            if part.size != side * side * 12:
                raise ValueError(
                    f"{name} must span {side * side * 12} bytes, f32 [{side}, {side}, 3], "
                    f"not {part.size}"
                )
            if part.offset % alignment or part.offset + part.size > part.buffer.size:
                raise ValueError(
                    f"{name} at offset {part.offset} must be aligned to {alignment} bytes and end "
                    f"within its buffer of {part.buffer.size} bytes"
                )
