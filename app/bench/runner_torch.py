"""The runner of PyTorch: on CUDA where there is a device, else on the host.

On CUDA each phase is run eagerly, as a CUDA graph of the eager run, compiled, and as a CUDA graph
of the compiled run; on the host eagerly only.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from app.bench.record import Framework, Job, Phase
from app.bench.runner import Prepared, Results, Skip, serve
from app.bench.values import network_of, parameter, sized

if TYPE_CHECKING:
    import torch

Outcome = tuple["torch.Tensor", tuple["torch.Tensor", ...]]
"""The output of a forward phase, or the loss and all gradients."""
Step = Callable[[], Outcome]
Tensors = Mapping[str, "torch.Tensor"]

COMPILED = "torch.compile"

WARM_UPS = 3
"""Runs before a capture, in which libraries allocate and choose kernels."""
TF32_ERROR = 1e-5
"""A product of f32 operands has a smaller relative error; one of TF32 operands a larger one."""


class TorchRunner:
    """Everything happens on one stream of its own.

    Autograd adds up a parameter's gradients on the stream where the parameter was first used. Were
    that another one than the capturing stream, a parameter that is used twice, as SmolLM2's
    embedding, would break the capture.
    """

    faults: tuple[type[Exception], ...] = (RuntimeError, ValueError, NotImplementedError)

    def __init__(self, job: Job) -> None:
        self.job = job
        self.torch = _import_torch(job.contract)
        torch = self.torch
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())
            torch.backends.cudnn.benchmark = True
        elif job.reduced:
            # Layers of a few elements: threads would only wait for each other.
            torch.set_num_threads(1)
        self._product_error = self._check_products()

    @property
    def framework(self) -> Framework:
        """Version, device, and the precision settings as PyTorch has them now."""
        torch, cuda = self.torch, self.device.type == "cuda"
        name = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
        return Framework(
            "torch",
            str(torch.__version__),
            name,
            f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}" if cuda else "",
            precision={
                "float32_matmul_precision": torch.get_float32_matmul_precision(),
                "cuda.matmul.allow_tf32": str(torch.backends.cuda.matmul.allow_tf32),
                "cudnn.allow_tf32": str(torch.backends.cudnn.allow_tf32),
                "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", "unset"),
                "error of a product": f"{self._product_error:.1e}",
            },
            settings={"cudnn.benchmark": str(torch.backends.cudnn.benchmark)},
        )

    def modes(self, phase: Phase) -> Mapping[str, Callable[[], Prepared]]:
        """Eager first: its results are the reference."""
        this = _Phase(self, phase)
        modes: dict[str, Callable[[], Prepared]] = {"eager": this.eager}
        if self.device.type == "cuda":
            modes["cuda graph"] = partial(this.captured, compiled=False)
            modes[COMPILED] = this.compiled
            modes[f"cuda graph of {COMPILED}"] = partial(this.captured, compiled=True)
        return modes

    def wait(self) -> None:
        """Synchronise."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def ceilings(self) -> None:
        """Not measured here."""
        return None

    def _check_products(self) -> float:
        """Relative error of an f32 product; Skip when it is more than the contract allows.

        A CPU computes strictly under any contract: a reference for values, if not for times.
        """
        torch = self.torch
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(512, 512, generator=generator, dtype=torch.float64) for _ in range(2))
        a, b = a.float().double(), b.float().double()
        got = (a.float().to(self.device) @ b.float().to(self.device)).cpu().double()
        error = float((got - a @ b).norm() / (a @ b).norm())
        if self.job.contract == "strict" and error > TF32_ERROR:
            raise Skip(f"PyTorch's f32 products are not strict here: error {error:.1e}")
        return error


def _import_torch(contract: str) -> ModuleType:
    """PyTorch with its precision set. Raises Skip when it is not installed."""
    strict = contract == "strict"
    # The libraries read it when they are loaded.
    os.environ.pop("NVIDIA_TF32_OVERRIDE", None)
    if strict:
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    try:
        import torch
    except ImportError:
        raise Skip("PyTorch is not installed: pip install -e .[reference]") from None
    torch.set_float32_matmul_precision("highest" if strict else "high")
    torch.backends.cuda.matmul.allow_tf32 = not strict
    torch.backends.cudnn.allow_tf32 = not strict
    return torch


class _Phase:
    """The network of a phase with its parameters and inputs on the device, and ways to run it."""

    def __init__(self, runner: TorchRunner, phase: Phase) -> None:
        from app.bench.torch_models import TORCH_MODELS
        from app.bench.torch_models.torch_model import Part

        self.runner, self.torch, self.device = runner, runner.torch, runner.device
        workload, config = sized(runner.job, phase)
        model = TORCH_MODELS[runner.job.workload]
        network = network_of(runner.job, phase)
        self.training = phase is Phase.TRAINING
        self.trained = list(network.graph.gradients)
        self.parameters = {
            name: self._upload(parameter(runner.job, name, layout))
            for name, layout in network.layouts.items()
        }
        for name in self.trained:
            self.parameters[name].requires_grad_()
        values = {**workload.inputs(config), **model.constants(config)}
        self.inputs = {name: self._upload(value) for name, value in values.items()}

        def evaluate(parameters: Tensors, inputs: Tensors) -> torch.Tensor:
            output = model.forward(Part(parameters), inputs, config)
            return model.loss(output, inputs) if self.training else output

        self._evaluate = evaluate
        self._compiled: tuple[Step, float] | None = None

    def eager(self) -> Prepared:
        """As PyTorch runs the code."""
        self._forget()
        return self._prepared(self._step(self._evaluate), None)

    def compiled(self) -> Prepared:
        """As torch.compile makes it."""
        self._forget()
        return self._prepared(*self._compile())

    def captured(self, *, compiled: bool) -> Prepared:
        """One of the above as one CUDA graph."""
        self._forget()
        torch = self.torch
        step, compile_s = self._compile() if compiled else (self._step(self._evaluate), None)
        for _ in range(WARM_UPS):
            step()
        self.runner.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            outcome = step()

        def replay() -> Outcome:
            graph.replay()
            return outcome

        return self._prepared(replay, compile_s)

    def _compile(self) -> tuple[Step, float]:
        """The compiled step, and the seconds of its first run, which compiles."""
        if self._compiled is None:
            self.torch.compiler.reset()
            compiled = self.torch.compile(self._evaluate, fullgraph=True, dynamic=False)
            step = self._step(compiled)
            self.runner.wait()
            begin = time.perf_counter()
            step()
            self.runner.wait()
            self._compiled = step, time.perf_counter() - begin
        return self._compiled

    def _step(self, evaluate: Callable[[Tensors, Tensors], torch.Tensor]) -> Step:
        wanted = [self.parameters[name] for name in self.trained]

        def infer() -> Outcome:
            with self.torch.no_grad():
                return evaluate(self.parameters, self.inputs), ()

        def train() -> Outcome:
            loss = evaluate(self.parameters, self.inputs)
            return loss.detach(), self.torch.autograd.grad(loss, wanted)

        return train if self.training else infer

    def _prepared(self, step: Step, compile_s: float | None) -> Prepared:
        newest: list[Outcome] = []

        def run() -> None:
            # Before, so that two sets of gradients never take memory at the same time.
            newest.clear()
            newest.append(step())

        def check() -> np.ndarray:
            value, gradients = newest[0]
            if not self.training:
                return _to_host(value)
            total = sqrt(sum(float(g.double().norm()) ** 2 for g in gradients))
            return np.array([float(value), total])

        def results() -> Results:
            value, gradients = newest[0]
            if not self.training:
                return Results(output=_to_host(value))
            named = zip(self.trained, map(_to_host, gradients), strict=True)
            return Results(loss=float(value), gradients=dict(named))

        return Prepared(run, compile_s, check, results, self._memory)

    def _forget(self) -> None:
        """Free what an earlier mode left, and count memory anew."""
        if self.device.type == "cuda":
            gc.collect()
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def _memory(self) -> dict[str, int]:
        if self.device.type != "cuda":
            return {}
        return {"allocated": int(self.torch.cuda.max_memory_allocated())}

    def _upload(self, value: np.ndarray) -> torch.Tensor:
        # Labels and tokens are indices, which PyTorch wants as int64.
        host = value.astype(np.int64) if value.dtype.kind == "u" else value
        return self.torch.from_numpy(np.ascontiguousarray(host)).to(self.device, copy=True)


def _to_host(value: torch.Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


if __name__ == "__main__":
    sys.exit(serve(TorchRunner))
