"""What a device can do at best, measured by two small kernels: multiply-adds, and a copy."""

from __future__ import annotations

import time

from app.bench.record import Ceilings
from engine.errors import GpuError
from engine.gpu import BufferRange, Command, Gpu
from engine.kernels.wgsl import bindings, linear_grid, linear_main

WORKGROUP = 64
CHAINS = 8
"""Independent vec4 accumulators of an invocation: more than an adder's latency in instructions."""
STEPS = 256
SAMPLES = 5
SAMPLE_S = 0.02
WARM_UP_S = 0.5
LONGEST_S = 60.0


def measured_ceilings(gpu: Gpu, gflops: float | None = None, gbs: float | None = None) -> Ceilings:
    """The device's ceilings; those that are given are not measured.

    Waits for the device. Raises GpuError when it is lost.
    """
    measured = gflops is None or gbs is None
    return Ceilings(gflops or _gflops(gpu), gbs or _gbs(gpu), measured)


def _gflops(gpu: Gpu) -> float:
    """GFLOP/s of f32 multiply-adds in registers."""
    threads = (1 << 12) if gpu.facts.is_cpu else (1 << 19)
    names = [f"a{n}" for n in range(CHAINS)]
    start = "\n".join(f"    var {n} = x[(i + {k}u) % {threads}u];" for k, n in enumerate(names))
    step = "\n".join(f"        {n} = fma({n}, scale, shift);" for n in names)
    body = f"""    let scale = x[0u] + vec4<f32>(0.5);
    let shift = x[1u];
{start}
    for (var n = 0u; n < {STEPS}u; n++) {{
{step}
    }}
    y[i] = {" + ".join(names)};"""
    taken = _seconds(gpu, body, threads)
    return 2 * 4 * CHAINS * STEPS * threads / taken / 1e9


def _gbs(gpu: Gpu) -> float:
    """GB/s of a copy, bytes read and written together."""
    wanted = (16 << 20) if gpu.facts.is_cpu else (512 << 20)
    # Far beyond any cache, within what one binding may hold.
    threads = min(wanted, gpu.facts.max_binding_bytes, gpu.facts.max_buffer_bytes) // 16
    taken = _seconds(gpu, "    y[i] = x[i];", threads)
    return 2 * 16 * threads / taken / 1e9


def _seconds(gpu: Gpu, body: str, threads: int) -> float:
    """Seconds of one launch over x and y, vec4s by thread; the best of several samples."""
    x, y = (BufferRange(gpu.storage_buffer(16 * threads), 0, 16 * threads) for _ in range(2))
    declared = bindings([("x", "vec4<f32>")], [("y", "vec4<f32>")])
    source = f"{declared}\n{linear_main(threads, WORKGROUP, body)}"
    command = gpu.command(source, [x], [y], linear_grid(threads, WORKGROUP), "ceiling")
    begin = time.perf_counter()
    _sample(gpu, command, 1)
    # An idle GPU has lower clocks.
    while time.perf_counter() - begin < WARM_UP_S and not gpu.facts.is_cpu:
        _sample(gpu, command, 1)
    launches = max(1, min(1000, int(SAMPLE_S / max(_sample(gpu, command, 1), 1e-6))))
    return min(_sample(gpu, command, launches) for _ in range(SAMPLES))


def _sample(gpu: Gpu, command: Command, launches: int) -> float:
    encoder = gpu.device.create_command_encoder()
    gpu.replay(encoder, [command] * launches)
    start = time.perf_counter()
    serial = gpu.submit(encoder)
    while gpu.poll() < serial:
        if time.perf_counter() - start > LONGEST_S:
            raise GpuError(f"the device did not finish a probe within {LONGEST_S:.0f} s")
    return (time.perf_counter() - start) / launches
