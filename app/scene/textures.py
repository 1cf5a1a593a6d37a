"""A picture texture with mip levels made on the CPU, so that writing it creates no GPU object."""

from __future__ import annotations

import cv2
import numpy as np
import wgpu
from numpy.typing import NDArray


class PictureTexture:
    """An `rgba8unorm-srgb` texture of fixed size that is rewritten as a whole.

    `size` is (width, height) in pixels. Each mip level halves the one before it, down to at most
    `levels` levels or a single pixel.
    """

    def __init__(
        self, device: wgpu.GPUDevice, size: tuple[int, int], levels: int, label: str
    ) -> None:
        width, height = size
        self._queue = device.queue
        self._sizes = [
            (max(1, width >> level), max(1, height >> level))
            for level in range(min(levels, max(size).bit_length()))
        ]
        self._texture = device.create_texture(
            label=label,
            size=(width, height, 1),
            format=wgpu.TextureFormat.rgba8unorm_srgb,
            usage=wgpu.TextureUsage.TEXTURE_BINDING | wgpu.TextureUsage.COPY_DST,
            mip_level_count=len(self._sizes),
        )
        self._label = label
        self.view: wgpu.GPUTextureView = self._texture.create_view()

    def write(self, rgba: NDArray[np.uint8]) -> None:
        """Replace the picture: [H, W, 4] uint8, straight alpha, sRGB values.

        Raises `ValueError` for another shape or type.
        """
        width, height = self._sizes[0]
        if rgba.shape != (height, width, 4) or rgba.dtype != np.uint8:
            raise ValueError(
                f"{self._label} takes uint8 [{height}, {width}, 4], got {rgba.dtype} "
                f"{list(rgba.shape)}"
            )
        image = np.ascontiguousarray(rgba)
        for level, (width, height) in enumerate(self._sizes):
            if level > 0:
                smaller = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
                image = smaller.astype(np.uint8, copy=False)
            self._queue.write_texture(
                {"texture": self._texture, "mip_level": level, "origin": (0, 0, 0)},
                image,
                {"offset": 0, "bytes_per_row": width * 4, "rows_per_image": height},
                (width, height, 1),
            )
