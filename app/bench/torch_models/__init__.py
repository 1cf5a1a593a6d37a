"""The networks of the benchmark in PyTorch: what the engine's are compared with."""

from __future__ import annotations

from app.bench.torch_models.dinovision import DINOVISION
from app.bench.torch_models.resnet50 import RESNET50
from app.bench.torch_models.smollm2 import SMOLLM2
from app.bench.torch_models.smolvla import SMOLVLA
from app.bench.torch_models.torch_model import TorchModel
from app.bench.torch_models.unet import UNET
from app.bench.torch_models.whisper import WHISPER

TORCH_MODELS: dict[str, TorchModel] = {
    "smollm2": SMOLLM2,
    "smolvla": SMOLVLA,
    "unet": UNET,
    "resnet50": RESNET50,
    "whisper": WHISPER,
    "dinovision": DINOVISION,
}
"""By the names of `models.zoo.WORKLOADS`."""
