"""A language model on a device: two programs, for a piece of a prompt and for one token, and the
cache of keys and values that both write and read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.cache import compile_cached
from engine.errors import GpuError
from engine.gpu import Gpu
from engine.kernel_table import load_table
from engine.readback import Readback
from engine.session import Session
from engine.storage import Storage, survives
from models.smollm2 import SmolLm2Config
from models.smollm2_cached import IDS, LAST, LOGITS, POSITION, continuation

PIECE, CPU_PIECE = 64, 16
"""Tokens of a prompt that are taken at a time, on GPUs and on CPU devices."""
SPIN_S = 0.02
"""How long completion is polled for without a pause, which would cost more than a token takes."""


class Generator:
    """Predicts how a text goes on. All GPU objects are made here, none while it predicts.

    `context`: the longest text, in tokens. With `storage` f16, matrices lie in memory so, but for
    those whose values f16 cannot hold. Raises EngineError when the device cannot hold it all.
    """

    def __init__(
        self,
        gpu: Gpu,
        sizes: SmolLm2Config,
        parameters: Mapping[str, np.ndarray],
        context: int,
        piece: int | None = None,
        storage: Storage = "f32",
    ) -> None:
        self.gpu, self.context = gpu, context
        self.position = 0
        """Tokens of the text so far."""
        facts = replace(gpu.facts, table=load_table(gpu))
        # Two at least: a program of one token is the other one.
        self.piece = max(2, min(piece or (CPU_PIECE if facts.is_cpu else PIECE), context))
        graphs = [
            continuation(sizes, tokens, max(context, tokens)).graph for tokens in (self.piece, 1)
        ]
        self.kept: tuple[str, ...] = ()
        """Matrices that stay f32 although `storage` is f16."""
        if storage == "f16":
            matrices = {name: value for name, value in parameters.items() if value.ndim > 1}
            self.kept = tuple(name for name, value in matrices.items() if not survives(value))
        prompt, single = (
            compile_cached(graph, facts, contract=gpu.contract, storage=storage, kept=self.kept)
            for graph in graphs
        )
        self._prompt = Session(gpu, prompt)
        self._single = Session(gpu, single, sharing=self._prompt)
        self._prompt.load(parameters)
        self._readback = Readback(gpu, 4 * sizes.vocabulary)

    def reset(self) -> None:
        """Begin a new text."""
        self.position = 0

    def warm_up(self) -> None:
        """Run both programs once, so that drivers finish compiling; ends the text."""
        self.reset()
        self.extend([0] * min(2, self.context))
        self.reset()
        self.extend([0])
        self.reset()

    def extend(self, ids: Sequence[int]) -> np.ndarray:
        """Add tokens to the text; logits f32 [vocabulary] of the one that would come next.

        Raises ValueError for no tokens, and for more than the context has room for; GpuError when
        the device is lost or the logits are not finite.
        """
        if not 1 <= len(ids) <= self.context - self.position:
            room = self.context - self.position
            raise ValueError(f"takes 1 to {room} further tokens, not {len(ids)}")
        for first in range(0, len(ids), self.piece):
            part = ids[first : first + self.piece]
            self._submit(part, wanted=first + len(part) == len(ids))
            self.position += len(part)
        logits = self._logits()
        if not np.isfinite(logits).all():
            raise GpuError("the model's logits are not finite: are these its weights?")
        return logits

    def _submit(self, ids: Sequence[int], *, wanted: bool) -> None:
        """Queue tokens at the present position, and the logits' way back if they are wanted."""
        session = self._single if len(ids) == 1 else self._prompt
        filled = np.zeros(session.type(IDS).shape, np.uint32)
        filled[: len(ids)] = ids
        session.write(IDS, filled)
        session.write(POSITION, np.array([self.position], np.uint32))
        if session is self._prompt:
            session.write(LAST, np.array([len(ids) - 1], np.uint32))
        if not wanted:
            session.run()
            return
        copy = self.gpu.device.create_command_encoder()
        self._readback.record(copy, session.range(LOGITS))
        self._readback.arm(session.run(behind=copy))

    def _logits(self) -> np.ndarray:
        until = time.perf_counter() + (0.0 if self.gpu.facts.is_cpu else SPIN_S)
        while not self._readback.arrived and time.perf_counter() < until:
            self.gpu.poll()
        if not self._readback.arrived:
            self.gpu.wait()
        data = self._readback.take()
        assert data is not None
        return data.view(np.float32)
