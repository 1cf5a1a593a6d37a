"""Painting single images with a decoder's weights, outside of any frame loop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.encoder import Encoder
from engine.compile import compile_graph
from engine.gpu import Gpu
from engine.session import Session
from engine.storage import Storage
from models.vision import IMAGE, inference_graph


class Painter:
    """The program that previews deploy, one image at a time. Waits for the device."""

    def __init__(
        self, gpu: Gpu, encoder: Encoder, size: int = IMAGE, storage: Storage = "f32"
    ) -> None:
        graph = inference_graph(depth=encoder.depth, size=size)
        plan = compile_graph(graph, gpu.facts, contract=gpu.contract, storage=storage)
        self._session = Session(gpu, plan)
        self._session.load(encoder.tensors)
        self.shapes = {node.name: node.shape for node in graph.parameters(trainable=True)}
        """What a decoder consists of."""

    def load(self, decoder: Mapping[str, np.ndarray]) -> None:
        """Take the decoder's parameters from now on; other tensors are left alone."""
        self._session.load({name: decoder[name] for name in self.shapes})

    def paint(self, image: np.ndarray) -> np.ndarray:
        """What the decoder makes of an image; both f32 [size, size, 3] in 0..1."""
        self._session.write("image", image)
        self._session.run()
        return self._session.read("painted")
