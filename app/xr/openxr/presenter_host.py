"""The `host` presenter: eye images go through the host's memory.

Plain wgpu cannot share an image with another device. So a frame's submission ends with a copy of
the eyes into a readback buffer; when the device has passed it, the queue of the session's own
Vulkan device copies the bytes into the swapchain image: straight from the readback's pages where
that device can import them, else from a buffer of its own into which the host copies them first.

Nothing waits for the renderer: what has arrived is presented, and a frame whose image is not there
yet shows the image before, with the pose that this one was rendered for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.xr.driver import XrError
from app.xr.openxr.host_buffer import HostBuffer, ImportedBuffer
from app.xr.openxr.newest import NewestImage
from app.xr.openxr.uploader import TEXEL_BYTES, Swapchain, Upload, Uploader, check_eyes
from app.xr.openxr.vulkan_device import VulkanDevice
from engine.gpu import Gpu
from engine.readback import Readback

if TYPE_CHECKING:
    import wgpu

SLOTS = 3
"""Images on their way at once: one being rendered, one arriving, one being shown."""

ROW_ALIGNMENT = 256  # WebGPU's, for copies from textures


class _Slot:
    """One image on its way: a readback and an upload, idle once both are done."""

    def __init__(
        self, gpu: Gpu, vulkan: VulkanDevice, uploader: Uploader, row_bytes: int, rows: int
    ) -> None:
        self.readback = Readback(gpu, row_bytes * rows)
        self.frame_id = 0
        self.host_bytes = 0
        self._vulkan, self._uploader, self._row_bytes = vulkan, uploader, row_bytes
        self._pages: ImportedBuffer | None = None
        self._buffer: HostBuffer | None = None
        self._from_pages: Upload | None = None
        self._from_buffer: Upload | None = None

    def import_pages(self) -> bool:
        """Learn whether the readback's pages can be uploaded from; it must have arrived."""
        image = self.readback.map()
        assert image is not None
        try:
            self._pages = ImportedBuffer(self._vulkan, image)
            self._from_pages = self._uploader.upload(
                self._pages.handle, self._row_bytes, self._pages.offset
            )
        except XrError:
            return False
        finally:
            self.readback.unmap()
        return True

    def make_buffer(self) -> Upload:
        """The upload from a buffer of its own."""
        if self._from_buffer is None:
            self._buffer = HostBuffer(self._vulkan, self.readback.nbytes)
            self._from_buffer = self._uploader.upload(self._buffer.handle, self._row_bytes)
        return self._from_buffer

    def upload(self, image: NDArray[np.uint8], index: int) -> None:
        """Send the mapped readback's bytes into the swapchain image `index`."""
        pages = self._pages
        if pages is not None and self._from_pages is not None:
            if image.ctypes.data == pages.address:
                self._from_pages.submit(index)  # they stay mapped until the queue has read them
                return
        upload = self.make_buffer()
        assert self._buffer is not None
        self._buffer.bytes[:] = image
        self.host_bytes += image.nbytes
        self.readback.unmap()
        upload.submit(index)

    @property
    def idle(self) -> bool:
        """Whether the slot is free."""
        if any(upload.busy for upload in (self._from_pages, self._from_buffer) if upload):
            return False
        self.readback.unmap()
        return self.readback.idle

    def close(self) -> None:
        """Free the buffers; the queue must be idle."""
        for buffer in (self._pages, self._buffer):
            if buffer is not None:
                buffer.close()
        self.readback.unmap()


class HostPresenter(NewestImage[_Slot]):
    """A `Presenter` of `eyes` (rgba8unorm-srgb, both eyes side by side) into `swapchain`.

    `imports`: use the readback's pages where the session's device can. Everything is created here;
    waits for `gpu` once. Raises `XrError` when the texture does not fit the swapchain.
    """

    name = "host"

    def __init__(
        self,
        gpu: Gpu,
        eyes: wgpu.GPUTexture,
        vulkan: VulkanDevice,
        swapchain: Swapchain,
        *,
        imports: bool = True,
        note: str = "eye images go through the host's memory",
    ) -> None:
        check_eyes(eyes, swapchain)
        width, height = swapchain.size
        super().__init__(swapchain)
        self.note = note
        self._gpu = gpu
        self._source = {"texture": eyes}
        self._size = (width, height, 1)
        self._row_bytes = -(-width * TEXEL_BYTES // ROW_ALIGNMENT) * ROW_ALIGNMENT
        self._uploader = Uploader(vulkan, swapchain)
        self._slots = [
            _Slot(gpu, vulkan, self._uploader, self._row_bytes, height) for _ in range(SLOTS)
        ]
        self.imports = imports and vulkan.import_alignment > 0 and self._import_pages()
        """Whether images are uploaded from the readback's pages."""
        if not self.imports:
            for slot in self._slots:
                slot.make_buffer()

    def _import_pages(self) -> bool:
        """Bring an image once through every slot, to learn where its pages are."""
        for slot in self._slots:
            encoder = self._gpu.device.create_command_encoder()
            self._copy(encoder, slot)
            slot.readback.arm(self._gpu.submit(encoder))
        self._gpu.wait()
        return all([slot.import_pages() for slot in self._slots])

    def _copy(self, encoder: wgpu.GPUCommandEncoder, slot: _Slot) -> None:
        layout = {"buffer": slot.readback.buffer, "bytes_per_row": self._row_bytes}
        encoder.copy_texture_to_buffer(self._source, layout, self._size)
        slot.host_bytes += slot.readback.nbytes

    def record(self, encoder: wgpu.GPUCommandEncoder, frame_id: int) -> None:
        """Copy the eyes into a free readback; skipped when there is none."""
        slot = next((slot for slot in self._slots if slot.idle), None)
        if slot is None:
            self.skipped += 1
            return
        slot.frame_id, self._recorded = frame_id, slot
        self._copy(encoder, slot)

    def submitted(self, serial: int) -> None:
        """Name the submission that carries the copy."""
        if self._recorded is not None:
            self._recorded.readback.arm(serial)
            self._recorded = None

    def ready(self, frame_id: int) -> bool:
        """Whether the frame's image has arrived, or never will; as of the last `Gpu.poll`."""
        return frame_id <= self._shown or all(
            slot.readback.idle or slot.readback.arrived
            for slot in self._slots
            if slot.frame_id == frame_id
        )

    def _arrived(self, slot: _Slot) -> bool:
        return slot.readback.arrived

    def _discard(self, slot: _Slot) -> None:
        slot.readback.discard()

    def _put(self, slot: _Slot) -> bool:
        image = slot.readback.map()
        if image is None:
            return False
        slot.upload(image, self._swapchain.acquire())
        return True

    @property
    def host_bytes(self) -> int:
        """Bytes of eye images written to the host's memory so far, by the device or the host."""
        return sum(slot.host_bytes for slot in self._slots)

    def close(self) -> None:
        """Free buffers and commands; waits for the session's queue. Safe to call twice."""
        self._uploader.close()
        for slot in self._slots:
            slot.close()
        self._slots = []
