"""Published weights: saved by transformers and PyTorch with random values, loaded, and compared."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from cases import relative_l2
from device_runs import outputs

from app.bench import values
from app.bench.protocol import REDUCED
from app.bench.record import Job
from engine.errors import CheckpointError
from engine.gpu import Gpu
from models import published
from models.published import load_published
from models.resnet50 import RESNET50, ResnetConfig
from models.whisper import WHISPER
from models.workload import OUTPUT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

from app.bench.torch_models import TORCH_MODELS  # noqa: E402
from app.bench.torch_models.torch_model import Part  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

nn = torch.nn


class Bottleneck(nn.Module):
    """As torchvision names its parts."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if inputs != outputs:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """With batch norms, unlike the benchmark's."""

    def __init__(self, config: ResnetConfig) -> None:
        super().__init__()
        width = inputs = config.channels
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        for stage, blocks in enumerate(config.blocks):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layer.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(inputs, config.classes)

    def forward(self, x):
        y = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        y = self.layer4(self.layer3(self.layer2(self.layer1(y))))
        return self.fc(y.mean(dim=(2, 3)))


def resnet(config: ResnetConfig) -> ResNet:
    """In eval mode, with statistics unlike the initial ones."""
    torch.manual_seed(1)
    model = ResNet(config).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.2, 2.0)
    return model


@pytest.mark.parametrize("form", ["pth", "safetensors"])
def test_resnet_with_its_norms_folded_in_both_runners(
    form: str, gpu: Gpu, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = RESNET50.reduced, tmp_path / f"resnet50.{form}"
    model = resnet(config)
    assert "bn1.num_batches_tracked" in model.state_dict()
    (torch.save if form == "pth" else save_file)(model.state_dict(), path)
    images = rng.uniform(-1, 1, config.images).astype(np.float32)
    with torch.no_grad():
        want = model(torch.from_numpy(images)).numpy()

    network = RESNET50.inference(config)
    loaded = load_published("resnet50", "ResNet-50", network.layouts, path)
    got = outputs(gpu, network.graph, {**loaded, "images": images})[OUTPUT]
    assert relative_l2(got, want) < 1e-5

    monkeypatch.setitem(values.WORKLOADS, "resnet50", replace(RESNET50, full=config))
    job = Job("resnet50", "strict", False, REDUCED, "", weights=str(path))
    native = {n: torch.from_numpy(values.parameter(job, n, v)) for n, v in network.layouts.items()}
    theirs = TORCH_MODELS["resnet50"].forward(
        Part(native), {"images": torch.from_numpy(images)}, config
    )
    assert relative_l2(theirs.numpy(), want) < 1e-5


@pytest.mark.parametrize("core", [False, True], ids=["whole model", "core"])
def test_whisper_encoder(core: bool, gpu: Gpu, rng: np.random.Generator, tmp_path: Path) -> None:
    config = WHISPER.reduced
    settings = transformers.WhisperConfig(
        num_mel_bins=config.mels,
        max_source_positions=config.frames // 2,
        d_model=config.hidden,
        encoder_layers=config.layers,
        encoder_attention_heads=config.heads,
        encoder_ffn_dim=config.mlp,
        decoder_layers=1,
        decoder_attention_heads=config.heads,
        decoder_ffn_dim=8,
        vocab_size=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        init_std=0.3,
    )
    torch.manual_seed(2)
    kind = transformers.WhisperModel if core else transformers.WhisperForConditionalGeneration
    model = kind(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(tmp_path)
    mel = rng.uniform(-1, 1, (1, config.mels, config.frames)).astype(np.float32)
    with torch.no_grad():
        want = model.get_encoder()(torch.from_numpy(mel)).last_hidden_state.numpy()
    network = WHISPER.inference(config)
    path = tmp_path / "model.safetensors"
    loaded = load_published("whisper", "Whisper-tiny", network.layouts, path)
    got = outputs(gpu, network.graph, {**loaded, "mel": mel})[OUTPUT]
    assert relative_l2(got, want) < 1e-5


def test_the_whole_resnet50_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torchvision says of its file: 25,557,032 parameters, and 53 norms."""
    asked: dict[str, tuple[int, ...]] = {}

    class Asking:
        def take(self, shapes):
            asked.update(shapes)
            return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}

    layouts = RESNET50.inference(RESNET50.full).layouts
    folded = published._resnet50(Asking(), layouts)
    learnt = {name: shape for name, shape in asked.items() if ".running_" not in name}
    assert sum(map(prod, learnt.values())) == 25_557_032
    assert len(asked) - len(learnt) == 2 * 53
    assert folded.keys() == layouts.keys()


def test_unsuitable_files(tmp_path: Path) -> None:
    path, config = tmp_path / "resnet50.safetensors", RESNET50.reduced
    layouts = RESNET50.inference(config).layouts

    def complaint(**changes) -> str:
        state = {**resnet(config).state_dict(), **changes}
        save_file({name: value for name, value in state.items() if value is not None}, path)
        with pytest.raises(CheckpointError) as caught:
            load_published("resnet50", "ResNet-50", layouts, path)
        return str(caught.value)

    assert "is no whole ResNet-50: it lacks 'fc.weight', and has " in complaint(
        **{"fc.weight": None}
    )
    message = complaint(**{"layer1.0.bn1.running_var": torch.ones(5)})
    assert "'layer1.0.bn1.running_var' has shape [5], ResNet-50 has [4]" in message
    assert "'bn1.running_var' is negative" in complaint(**{"bn1.running_var": -torch.ones(4)})
    nan = torch.full((4,), float("nan"))
    assert "'bn1.bias' holds values that are not finite" in complaint(**{"bn1.bias": nan})
    with pytest.raises(CheckpointError, match="no published weights fit 'unet'"):
        load_published("unet", "U-Net", {}, path)
