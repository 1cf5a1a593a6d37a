"""Finding out why a training step failed: what it started from is kept, and the step run again."""

from __future__ import annotations

import wgpu

from app.network import Network
from engine.debug import first_nonfinite


class NanWatch:
    """Keeps weights and optimiser state of one step. All GPU objects are created here."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._copies = [
            (pack, network.gpu.storage_buffer(pack.size, "watched"))
            for pack in network.saved_packs()
        ]

    def record(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """Record the copy, before anything of the step."""
        for pack, copy in self._copies:
            encoder.copy_buffer_to_buffer(pack.buffer, pack.offset, copy, 0, pack.size)

    def find(self) -> str:
        """Run the recorded step again, launch by launch; one line that says where it fails.

        The inputs must still be those of the step. Waits for the device and creates temporary
        buffers: for after a failure only. Training state is undefined afterwards.
        """
        gpu = self.network.gpu
        encoder = gpu.device.create_command_encoder()
        for pack, copy in self._copies:
            encoder.copy_buffer_to_buffer(copy, 0, pack.buffer, pack.offset, pack.size)
        gpu.submit(encoder)
        found = first_nonfinite(self.network.train)
        return str(found) if found else "run again, all results of the step are finite"
