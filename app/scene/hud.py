"""The HUD: a dashboard drawn on the CPU, a few times a second, from one immutable state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from app.scene.hud_canvas import (
    BAD,
    DESIGN_SIZE,
    DIM,
    EDGE,
    GOOD,
    PAPER,
    PERIOD,
    TEXT,
    TRACE,
    TRACE_FILL,
    WARN,
    WELL,
    Canvas,
    number,
)
from app.scene.hud_curve import CURVE, draw_curve
from app.scene.text import Colour, fit, pygame, surface_rgba

GRAPH_FRAMES = 240
GRAPH_PERIODS = 2.5


@dataclass(frozen=True)
class HudState:
    """What the HUD tells. Times in milliseconds; `None` means not known yet.

    `frame_ms` are recent frame times, newest last, of which the last 240 are drawn;
    `missed_recent` says for each of them whether it was missed. `gpu_share` is the share of GPU
    time, 0..1, that "render", "train" and "infer" took of late. `held_out` is the PSNR of held-out
    photographs over the session, (ns, dB), the first as it was before. `before`: the painting is
    one with the weights of the start. A non-empty `help_lines` covers the dashboard with key help.
    """

    frame_ms: Sequence[float] = ()
    period_ms: float = 0.0
    missed: int = 0
    missed_recent: Sequence[bool] = ()
    missed_per_1000: float = 0.0
    chunks: int = 1
    in_flight: int = 1
    policy: str = ""
    job: str = ""
    training: bool = False
    train_steps: int = 0
    steps_per_s: float = 0.0
    loss: float | None = None
    camera_db: float | None = None
    held_out: Sequence[tuple[int, float]] = ()
    before: bool = False
    infer_ms: float | None = None
    gpu_share: Mapping[str, float] = field(default_factory=dict)
    camera: str = ""
    camera_age_ms: float | None = None
    encoder_note: str = ""
    encoder_is_random: bool = False
    adapter: str = ""
    message: str = ""
    recording: bool = False
    help_lines: Sequence[str] = field(default=())


TILES = ("chunks", "in flight", "inference", "steps / s", "camera", "held out")
TILE_LEFT, TILE_TOP, TILE_WIDTH, TILE_HEIGHT, TILE_GAP = 736.0, 76.0, 162.0, 110.0, 13.0
GRAPH = (32.0, 166.0, 436.0, 105.0)
GPU_BAR = (32.0, 281.0, 672.0, 28.0)
TENANTS: dict[str, Colour] = {"render": TRACE, "train": GOOD, "infer": WARN}


def _tile_corner(index: int) -> tuple[float, float]:
    row, column = divmod(index, 3)
    return TILE_LEFT + column * (TILE_WIDTH + TILE_GAP), TILE_TOP + row * (TILE_HEIGHT + TILE_GAP)


@lru_cache(maxsize=4)
def _backdrop(size: tuple[int, int]) -> pygame.Surface:
    """Everything that never changes: paper, wells and labels."""
    surface = pygame.Surface(size, pygame.SRCALPHA)
    surface.fill((*EDGE, 0))
    canvas = Canvas(surface)
    paper, radius = surface.get_rect(), canvas.px(30)
    pygame.draw.rect(surface, (*PAPER, 238), paper, border_radius=radius)
    pygame.draw.rect(surface, EDGE, paper, width=canvas.px(3), border_radius=radius)
    canvas.box(GRAPH, WELL, 12)
    canvas.box(CURVE, WELL, 12)
    canvas.box(GPU_BAR, WELL, 8)
    for index, label in enumerate(TILES):
        x, y = _tile_corner(index)
        canvas.box((x, y, TILE_WIDTH, TILE_HEIGHT), WELL, 12)
        canvas.text(label, (x + 15, y + 32), 26, DIM)
    return surface


def render_hud(state: HudState, size: tuple[int, int] = DESIGN_SIZE) -> NDArray[np.uint8]:
    """Draw the dashboard: [height, width, 4] uint8, straight alpha, sRGB values."""
    if min(size) < 16:
        raise ValueError(f"HUD size must be at least 16 x 16 pixels, got {size}")
    canvas = Canvas(_backdrop(size).copy())
    if state.help_lines:
        _draw_help(canvas, state.help_lines)
    else:
        _draw_header(canvas, state)
        _draw_frame_time(canvas, state)
        _draw_graph(canvas, state)
        draw_curve(canvas, state.held_out)
        _draw_gpu_shares(canvas, state)
        _draw_tiles(canvas, state)
        _draw_footer(canvas, state)
    return surface_rgba(canvas.surface)


def _draw_header(canvas: Canvas, state: HudState) -> None:
    dot = (canvas.px(46), canvas.px(42))
    pygame.draw.circle(canvas.surface, GOOD if state.training else DIM, dot, canvas.px(10))
    mode = "training" if state.training else "not training"
    x = 68 + canvas.text(mode, (68, 49), 30, TEXT, 300)
    x += 16 + canvas.text(f"step {state.train_steps:,}", (x + 16, 49), 30, DIM, 260)
    if state.loss is not None:
        colour = DIM if math.isfinite(state.loss) else BAD
        x += 16 + canvas.text(f"loss {number(state.loss)}", (x + 16, 49), 30, colour, 200)
    if state.recording:
        canvas.box((x + 26, 24, 88, 37), BAD, 10)
        canvas.text("REC", (x + 39, 49), 28, PAPER)
        x += 114
    if state.encoder_note:
        room = 1248 - x - 60
        note = fit(state.encoder_note, canvas.px(28), canvas.px(room))
        width = canvas.width(note, 28) + 32
        canvas.box((1248 - width, 22, width, 41), WARN if state.encoder_is_random else DIM, 12)
        canvas.text(note, (1264 - width, 50), 28, PAPER)


def _draw_frame_time(canvas: Canvas, state: HudState) -> None:
    known = sorted(ms for ms in state.frame_ms if math.isfinite(ms))
    middle = known[len(known) // 2] if known else None
    late = middle is not None and middle > 1.5 * state.period_ms > 0
    size = canvas.shrink(number(middle), 72, 170)
    x = 44 + canvas.text(number(middle), (32, 137), size, BAD if late else TEXT)
    canvas.text("ms per frame", (x, 105), 26, DIM)
    canvas.text(f"of {number(state.period_ms)} ms", (x, 137), 26, PERIOD)

    missed, colour = f"{state.missed:,}", BAD if state.missed else GOOD
    size = canvas.shrink(missed, 72, 150)
    x = 692 - canvas.text(missed, (704, 137), size, colour, right=True)
    rate = f"{number(state.missed_per_1000, 2)} per 1000"
    canvas.text("missed", (x, 105), 26, DIM, right=True)
    canvas.text(rate, (x, 137), 26, DIM, right=True)


def _draw_graph(canvas: Canvas, state: HudState) -> None:
    area = canvas.rect(*GRAPH).inflate(-canvas.px(12), -canvas.px(12))
    period = state.period_ms if math.isfinite(state.period_ms) and state.period_ms > 0 else 0.0
    frames = list(state.frame_ms)[-GRAPH_FRAMES:]
    missed = list(state.missed_recent)[-GRAPH_FRAMES:]
    missed = [False] * (len(frames) - len(missed)) + missed[max(0, len(missed) - len(frames)) :]
    top = GRAPH_PERIODS * period or max((ms for ms in frames if math.isfinite(ms)), default=1.0)
    step = area.width / (GRAPH_FRAMES - 1)

    def height_of(ms: float) -> float:
        share = min(max(ms / top, 0.0), 1.0) if math.isfinite(ms) and top > 0 else 1.0
        return float(area.bottom - share * area.height)

    points = [
        (area.right - (len(frames) - 1 - index) * step, height_of(ms))
        for index, ms in enumerate(frames)
    ]
    if len(points) > 1:
        base = float(area.bottom)
        floor = [(points[-1][0], base), (points[0][0], base)]
        pygame.draw.polygon(canvas.surface, TRACE_FILL, points + floor)
        pygame.draw.lines(canvas.surface, TRACE, False, points, canvas.px(3))
    for (x, y), was_missed in zip(points, missed, strict=True):
        if was_missed:
            bar = pygame.Rect(round(x - canvas.px(4) / 2), round(y), canvas.px(5), 0)
            bar.height = area.bottom - bar.top
            pygame.draw.rect(canvas.surface, BAD, bar)
    if period:
        y = round(height_of(period))
        pygame.draw.line(canvas.surface, PERIOD, (area.left, y), (area.right, y), canvas.px(2))


def _draw_gpu_shares(canvas: Canvas, state: HudState) -> None:
    """Who keeps the GPU busy: a bar whose whole length is all of its time."""
    left, top, width, height = GPU_BAR
    if not state.gpu_share:
        canvas.text("GPU shares unknown", (left + 12, top + 22), 22, DIM)
        return
    total = max(1.0, sum(state.gpu_share.values()))
    x = left
    for tenant, colour in TENANTS.items():
        share = state.gpu_share.get(tenant, 0.0)
        length = width * share / total
        if length < 1:
            continue
        canvas.box((x, top, length, height), colour, 6)
        label = f"{tenant} {share:.0%}"
        if canvas.width(label, 22) + 16 <= length:
            canvas.text(label, (x + 8, top + 22), 22, PAPER)
        x += length
    idle = f"GPU idle {max(0.0, 1.0 - sum(state.gpu_share.values())):.0%}"
    if x + canvas.width(idle, 22) + 20 <= left + width:
        canvas.text(idle, (left + width - 10, top + 22), 22, DIM, right=True)


def _draw_tiles(canvas: Canvas, state: HudState) -> None:
    held_out = state.held_out[-1][1] if state.held_out else None
    values = (
        (str(state.chunks), "", TEXT),
        (str(state.in_flight), "", TEXT),
        (number(state.infer_ms), "ms", TEXT),
        (number(state.steps_per_s), "", TEXT if state.training else DIM),
        (number(state.camera_db), "dB", WARN if state.before else TEXT),
        (number(held_out), "dB", TEXT),
    )
    for index, (value, unit, colour) in enumerate(values):
        x, y = _tile_corner(index)
        known_unit = unit if value != "–" else ""
        room = TILE_WIDTH - (70 if known_unit else 24)
        size = canvas.shrink(value, 54, room)
        width = canvas.text(value, (x + 15, y + 87), size, colour)
        canvas.text(known_unit, (x + 21 + width, y + 87), 24, DIM)


def _draw_footer(canvas: Canvas, state: HudState) -> None:
    x = 32.0
    painted = ("before", WARN) if state.before else ("after", TEXT)
    for label, value, colour in (
        ("policy", state.policy, TEXT),
        ("job", state.job, TEXT),
        ("painted", *painted),
        ("camera", state.camera, TEXT),
    ):
        x += 9 + canvas.text(label, (x, 344), 27, DIM)
        x += 26 + canvas.text(value or "–", (x, 344), 27, colour, min(340.0, 1100.0 - x))
    if state.camera_age_ms is not None:
        canvas.text(f"{number(state.camera_age_ms, 2)} ms old", (x - 12, 344), 27, DIM, 1260 - x)
    used = 0.0
    if state.message:
        used = 30 + canvas.text(state.message, (1248, 379), 27, GOOD, 620, right=True)
    canvas.text(state.adapter, (32, 379), 25, DIM, 1216 - used)


def _draw_help(canvas: Canvas, lines: Sequence[str]) -> None:
    canvas.box((16, 16, 1248, 368), PAPER, 22)
    canvas.text("Keys", (40, 58), 36, TEXT)
    rows = math.ceil(len(lines) / 2)
    pitch = min(48.0, 300.0 / rows)
    for index, line in enumerate(lines):
        column, row = divmod(index, rows)
        at = (40 + 616 * column, 72 + pitch * (row + 0.68))
        canvas.text(line, at, min(30.0, 0.72 * pitch), TEXT, 584)
