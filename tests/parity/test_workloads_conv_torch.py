"""The U-Net and ResNet-50 at reduced size: output, loss and every gradient against PyTorch.

The references are functions of the published parameters, written from the networks' description.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases import relative_l2
from device_runs import start
from workload_values import draw_inputs, draw_parameters

from engine.gpu import Gpu
from models.resnet50 import RESNET50
from models.unet import UNET
from models.workload import LOSS, OUTPUT, Workload

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

Tensor = Any
Tensors = dict[str, Tensor]
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Part:
    """The parameters whose names begin with a prefix."""

    all: Tensors
    prefix: str = ""

    def __truediv__(self, name: str) -> "Part":
        return replace(self, prefix=f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Tensor:
        return self.all[self.prefix + name]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.all


def affine(p: Part, x: Tensor) -> Tensor:
    y = x @ p["weight"]
    return y + p["bias"] if "bias" in p else y


def unet(p: Part, x: Tensors) -> Tensor:
    sizes = UNET.reduced
    te = affine(p / "time_mlp.fc2", F.silu(affine(p / "time_mlp.fc1", x["timestep_embedding"])))

    def norm(p: Part, y: Tensor) -> Tensor:
        return F.group_norm(y, sizes.groups, p["weight"], p["bias"], 1e-5)

    def block(p: Part, y: Tensor) -> Tensor:
        z = F.conv2d(F.silu(norm(p / "norm1", y)), p["conv1.weight"], padding=1)
        z = z + affine(p / "time_proj", te)[:, :, None, None]
        z = F.conv2d(F.silu(norm(p / "norm2", z)), p["conv2.weight"], padding=1)
        return z + (F.conv2d(y, p["res_conv.weight"]) if "res_conv.weight" in p else y)

    def attend(p: Part, y: Tensor, source: Tensor) -> Tensor:
        def heads(name: str, of: Tensor) -> Tensor:
            return (of @ p[f"{name}_proj.weight"]).unflatten(1, (-1, sizes.head)).transpose(0, 1)

        q, k, v = heads("q", y), heads("k", source), heads("v", source)
        weights = torch.softmax(q @ k.transpose(1, 2) / sizes.head**0.5, dim=-1)
        return (weights @ v).transpose(0, 1).flatten(1) @ p["out_proj.weight"]

    def layer_norm(p: Part, y: Tensor) -> Tensor:
        return F.layer_norm(y, y.shape[-1:], p["weight"], p["bias"], 1e-5)

    def transformer(p: Part, image: Tensor) -> Tensor:
        y = F.conv2d(norm(p / "norm", image), p["proj_in.weight"])
        y, t = y[0].flatten(1).T, p / "transformer"
        normed = layer_norm(t / "norm1", y)
        y = y + attend(t / "self_attn", normed, normed)
        y = y + attend(t / "cross_attn", layer_norm(t / "norm2", y), x["text_context"])
        hidden = F.gelu(affine(t / "ff.fc1", layer_norm(t / "norm3", y)), approximate="tanh")
        y = y + affine(t / "ff.fc2", hidden)
        return image + F.conv2d(y.T.reshape(image.shape), p["proj_out.weight"])

    y = F.conv2d(x["latent"], p["conv_in.weight"], padding=1)
    y = fine = block(p / "encoder.0.resblock", y)
    y = F.conv2d(y, p["encoder.0.downsample.weight"], stride=2, padding=1)
    y = middle = transformer(p / "encoder.1.attn", block(p / "encoder.1.resblock", y))
    y = F.conv2d(y, p["encoder.1.downsample.weight"], stride=2, padding=1)
    y = coarse = transformer(p / "encoder.2.attn", block(p / "encoder.2.resblock", y))
    y = transformer(p / "middle.attn", block(p / "middle.resblock", y))
    y = block(p / "decoder.2.resblock", torch.cat([y, coarse], dim=1))
    y = F.interpolate(transformer(p / "decoder.2.attn", y), scale_factor=2)
    y = block(p / "decoder.1.resblock", torch.cat([y, middle], dim=1))
    y = F.interpolate(transformer(p / "decoder.1.attn", y), scale_factor=2)
    y = block(p / "decoder.0.resblock", torch.cat([y, fine], dim=1))
    return F.conv2d(F.silu(norm(p / "conv_out.norm", y)), p["conv_out.weight"], padding=1)


def resnet(p: Part, x: Tensors) -> Tensor:
    def conv(conv: str, bias: str, y: Tensor, **window: int) -> Tensor:
        return F.conv2d(y, p[f"{conv}.weight"], p[f"{bias}.fused_bias"], **window)

    y = F.relu(conv("conv1", "bn1", x["images"], stride=2, padding=3))
    y = F.max_pool2d(y, 3, 2, 1)
    for stage, blocks in enumerate(RESNET50.reduced.blocks, 1):
        for block in range(blocks):
            n, stride = f"layer{stage}.{block}", 1 if stage == 1 or block else 2
            z = F.relu(conv(f"{n}.conv1", f"{n}.bn1", y))
            z = F.relu(conv(f"{n}.conv2", f"{n}.bn2", z, stride=stride, padding=1))
            z = conv(f"{n}.conv3", f"{n}.bn3", z)
            if block == 0:
                y = conv(f"{n}.downsample.0", f"{n}.downsample.1", y, stride=stride)
            y = F.relu(z + y)
    return affine(p / "fc", y.mean(dim=(2, 3)))


@dataclass(frozen=True)
class Case:
    workload: Workload[Any]
    forward: Callable[[Part, Tensors], Tensor]
    loss: Callable[[Tensor, Tensors], Tensor]


CASES = {
    "unet": Case(UNET, unet, lambda y, x: F.mse_loss(y, x["target"])),
    "resnet50": Case(RESNET50, resnet, lambda y, x: F.cross_entropy(y, x["labels"].long())),
}


@pytest.mark.parametrize("case", CASES)
def test_output_loss_and_gradients(case: str, gpu: Gpu, rng: np.random.Generator) -> None:
    this = CASES[case]
    workload = this.workload
    training, inference = (
        make(workload.reduced) for make in (workload.training, workload.inference)
    )
    inputs = draw_inputs(workload, workload.reduced, rng)
    native = draw_parameters(training, rng)
    stored = {name: training.layouts[name].to_engine(value) for name, value in native.items()}

    parameters = {
        name: torch.from_numpy(value).double().requires_grad_() for name, value in native.items()
    }
    given = {name: torch.from_numpy(value.astype(np.float64)) for name, value in inputs.items()}
    want = this.forward(Part(parameters), given)
    loss = this.loss(want, given)
    loss.backward()

    session = start(gpu, inference.graph, {**inputs, **stored}, gpu.facts)
    session.run()
    assert relative_l2(session.read(OUTPUT), want.detach().numpy()) < TOLERANCE
    session = start(gpu, training.graph, {**inputs, **stored}, gpu.facts)
    session.run()
    assert relative_l2(session.read(LOSS), loss.detach().numpy()[None]) < TOLERANCE
    assert training.graph.gradients.keys() == parameters.keys()
    for name, parameter in parameters.items():
        got = training.layouts[name].to_native(session.read(f"gradient:{name}"))
        error = relative_l2(got, parameter.grad.numpy())
        assert error < TOLERANCE, f"gradient of {name} deviates by {error:.1e}"
