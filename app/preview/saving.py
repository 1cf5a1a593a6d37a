"""Saving checkpoints from the running session without stalling a frame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import wgpu

from app.network import Network, Saver
from app.tenancy.tenant import Tenant
from engine.checkpoint import save_checkpoint
from engine.errors import CheckpointError

log = logging.getLogger(__name__)


class CheckpointSaver:
    """Downloads between two training runs, writes in a thread, and says how it went."""

    def __init__(self, network: Network, tenant: Tenant, say: Callable[[str], None]) -> None:
        self._network, self._tenant, self._say = network, tenant, say
        self._saver = Saver(network)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._path: Path | None = None
        self._step = 0
        self._written: Future[None] | None = None
        self.error: CheckpointError | None = None
        """Why the latest save failed; None when it did not."""

    @property
    def busy(self) -> bool:
        """Whether a save has been asked for and is not finished."""
        return self._path is not None

    def request(self, path: Path) -> None:
        """Save to `path` as soon as the weights are those of a finished step."""
        if self.busy:
            self._say("still saving the last checkpoint")
        else:
            # Else the chunks of a frame may end in the middle of a run, frame after frame.
            self._path, self._tenant.hold = path, True

    def draw(self, encoder: wgpu.GPUCommandEncoder) -> bool:
        """Record the download when it is due; a Viewer's part, so that it rides along."""
        waiting = self.busy and self._written is None and not self._saver.busy
        if not waiting or not self._tenant.between_runs:
            return False
        self._saver.record(encoder)
        self._step = self._network.step
        return True

    def submitted(self, serial: int) -> None:
        """See Viewer."""
        self._saver.arm(serial)
        self._tenant.hold = False

    def poll(self) -> None:
        """Start writing when the tensors have arrived, and report the end."""
        tensors = self._saver.take()
        if tensors is not None and self._path is not None:
            metadata = self._network.metadata(self._step)
            self._written = self._pool.submit(_save, self._path, tensors, metadata)
        if self._written is not None and self._written.done():
            self._report(self._written)
            self._path = self._written = None

    def close(self) -> None:
        """Wait for a write under way."""
        self._pool.shutdown(wait=True)
        self.poll()

    def _report(self, written: Future[None]) -> None:
        try:
            written.result()
        except CheckpointError as error:
            self.error = error
            log.warning("%s", error)
            self._say(str(error))
        else:
            self.error = None
            log.info("saved %s at step %d", self._path, self._step)
            self._say(f"saved {self._path} at step {self._step}")


def _save(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    if not all(np.isfinite(value).all() for value in tensors.values()):
        raise CheckpointError(
            f"{path} not written: learning has failed, its weights are not finite"
        )
    save_checkpoint(path, tensors, metadata)
