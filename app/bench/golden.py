"""Whether a workload computes what it should: a run on the device against a reference file.

`python -m app.bench.golden NAME --golden DIR` runs inference and training at full size and compares
the output, the loss and the gradient of every parameter with DIR/NAME.json, which another
framework wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from engine.compile import compile_graph
from engine.errors import EngineError
from engine.gpu import Gpu
from engine.session import Session
from models.hashing import hash_uniform
from models.workload import LOSS, OUTPUT, Network, Workload
from models.zoo import WORKLOADS

TOLERANCE = 0.01
"""Relative error of every quantity."""

FLOOR = 1e-6
"""Gradients are compared relative to at least this share of their norm over all parameters."""


NORM, PROBE = "norm of", "probe of"


@dataclass(frozen=True)
class Gradient:
    """A gradient as a reference file has it: its norm, and its product with a hashed probe.

    The probe is linear, so it sees exchanged elements and signs, which a norm does not.
    """

    norm: float
    probe: float

    @staticmethod
    def of(name: str, native: np.ndarray) -> Gradient:
        """What a reference file would say of a gradient in its native layout."""
        flat = native.astype(np.float64).ravel()
        direction = hash_uniform(f"probe:{name}", flat.shape, 1.0).astype(np.float64)
        return Gradient(float(np.linalg.norm(flat)), float(flat @ direction))


@dataclass(frozen=True)
class Golden:
    """A reference file."""

    output_shape: tuple[int, ...]
    sample: np.ndarray
    loss: float
    gradients: dict[str, Gradient]
    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def read(path: Path) -> Golden:
        """Raises OSError, or ValueError where the file is no reference file."""
        try:
            data = json.loads(path.read_text())
            norms, probes = data["gradient_norms"], data["gradient_probes"]
            return Golden(
                output_shape=tuple(data["output_shape"]),
                sample=np.array(data["output_sample_256"], np.float64),
                loss=float(data["loss"]),
                gradients={name: Gradient(norms[name], probes[name]) for name in norms},
                shapes={name: tuple(shape) for name, shape in data["parameter_shapes"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no reference file: {error!r}") from error

    @property
    def total_norm(self) -> float:
        """Norm of the gradient over all parameters."""
        return sqrt(sum(g.norm**2 for g in self.gradients.values()))


@dataclass(frozen=True)
class Result:
    """What a run gave: the output, the loss and the gradients in native layouts."""

    output: np.ndarray
    loss: float
    gradients: dict[str, Gradient]


@dataclass(frozen=True)
class Finding:
    """How far one quantity is from the reference, relatively; NaN if it is not finite."""

    what: str
    error: float

    @property
    def good(self) -> bool:
        """Whether the error is tolerable; NaN is not."""
        return self.error <= TOLERANCE


def sample(output: np.ndarray, count: int) -> np.ndarray:
    """`count` elements evenly spread over a flat output, ends included."""
    last = output.size - 1
    return output.ravel()[[k * last // max(count - 1, 1) for k in range(count)]]


def require_same_parameters(network: Network, golden: Golden) -> None:
    """Raises ValueError for the first name or native shape that differs."""
    shapes = {name: layout.native for name, layout in network.layouts.items()}
    for name in sorted(shapes.keys() | golden.shapes.keys()):
        mine, wanted = shapes.get(name, "missing"), golden.shapes.get(name, "missing")
        if mine != wanted:
            raise ValueError(f"parameter '{name}' is {mine} here, {wanted} in the reference")


def compare(result: Result, golden: Golden) -> list[Finding]:
    """Errors of output, loss, total norm, and of each gradient's norm and probe."""
    if result.output.shape != golden.output_shape:
        raise ValueError(f"output is {result.output.shape}, not {golden.output_shape}")
    if result.gradients.keys() != golden.gradients.keys():
        odd = sorted(result.gradients.keys() ^ golden.gradients.keys())
        raise ValueError(f"only one side has gradients of {', '.join(odd)}")
    return [*_compare(result, golden)]


def _compare(result: Result, golden: Golden) -> Iterator[Finding]:
    got = sample(result.output, golden.sample.size)
    error = np.linalg.norm(got - golden.sample) / np.linalg.norm(golden.sample)
    yield Finding("output", float(error))
    yield Finding("loss", abs(result.loss - golden.loss) / abs(golden.loss))
    total = golden.total_norm
    norm = sqrt(sum(g.norm**2 for g in result.gradients.values()))
    yield Finding("gradient norm", abs(norm - total) / total)
    for name, want in golden.gradients.items():
        mine, scale = result.gradients[name], max(want.norm, FLOOR * total)
        yield Finding(f"{NORM} {name}", abs(mine.norm - want.norm) / scale)
        # An error unrelated to the probe moves it by 1 / sqrt(3) of its norm; this is 3 sigma.
        yield Finding(f"{PROBE} {name}", abs(mine.probe - want.probe) / (sqrt(3) * scale))


def run(gpu: Gpu, workload: Workload[Any]) -> Result:
    """Inference and one training step at full size on poisoned memory."""
    output = _run(gpu, workload, workload.inference(workload.full)).read(OUTPUT)
    network = workload.training(workload.full)
    session = _run(gpu, workload, network)
    gradients = {}
    for name in network.graph.gradients:
        native = network.layouts[name].to_native(session.read(f"gradient:{name}"))
        gradients[name] = Gradient.of(name, native)
    return Result(output, float(session.read(LOSS)[0]), gradients)


def _run(gpu: Gpu, workload: Workload[Any], network: Network) -> Session:
    session = Session(gpu, compile_graph(network.graph, gpu.facts))
    names = session.plan.tensors
    for name, layout in network.layouts.items():
        session.write(name, workload.parameter(name, layout))
    inputs = workload.inputs(workload.full)
    session.load({name: value for name, value in inputs.items() if name in names})
    session.poison()
    session.run()
    gpu.wait()
    return session


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 if everything agrees, 1 if not or on an error, 2 for wrong usage."""
    about = "Run a workload on the device and compare it with a reference file."
    parser = argparse.ArgumentParser(prog="python -m app.bench.golden", description=about)
    parser.add_argument("name", choices=sorted(WORKLOADS))
    parser.add_argument("--golden", type=Path, required=True, help="folder of reference files")
    parser.add_argument("--all", action="store_true", help="show every quantity")
    options = parser.parse_args(arguments)
    workload = WORKLOADS[options.name]
    try:
        golden = Golden.read(options.golden / f"{workload.name}.json")
        require_same_parameters(workload.training(workload.full), golden)
        gpu = Gpu.open()
        findings = compare(run(gpu, workload), golden)
    except (OSError, ValueError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{workload.name} on {gpu.name}")
    return report(findings, everything=options.all)


def report(findings: Sequence[Finding], *, everything: bool = False) -> int:
    """Print errors, of gradients only the wrong and the worst ones; 0 if all are good, else 1."""
    norms, probes = ([f for f in findings if f.what.startswith(kind)] for kind in (NORM, PROBE))
    worst = {max(kind, key=lambda f: f.error) for kind in (norms, probes) if kind}
    for finding in findings:
        of_gradient = finding in norms or finding in probes
        if everything or not of_gradient or finding in worst or not finding.good:
            mark = "" if finding.good else "  WRONG"
            among = "  (worst)" if finding in worst else ""
            print(f"{finding.error:9.1e}  {finding.what}{among}{mark}")
    wrong = sum(not finding.good for finding in findings)
    print(f"{wrong} of {len(findings)} quantities differ by more than {TOLERANCE:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
