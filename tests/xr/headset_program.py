"""A small headset application for the tests: the scene, the driver and the presenter, no network.

Runs in a process of its own, which the runtime's C library needs. Prints one JSON object a line:
{"event": ..., ...}; reads nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
from typing import Any

import numpy as np

from app.scene.hud import HudState, render_hud
from app.scene.renderer import SceneRenderer
from app.scene.sources import BufferRange, PanelSources
from app.xr.driver import FrameTiming, View, XrEnded, XrError
from app.xr.openxr import choices
from app.xr.openxr.driver import OpenXrDriver
from app.xr.openxr.headset import refresh_rates
from app.xr.openxr.presenter_host import HostPresenter
from app.xr.openxr.presenters import make_presenter
from app.xr.presenter import Presenter
from engine.gpu import Gpu
from tests.xr.swapchain_reader import SwapchainReader

SIDE, GRID = 224, 14


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


class Application:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.driver = OpenXrDriver(render_scale=options.scale, patience_ms=options.patience)
        self.driver.open()
        self.gpu = Gpu.open(options.gpu)
        self.scene = make_scene(self.gpu, self.driver.view_size)
        headset = self.driver.headset
        buffers = self.gpu.created["buffer"]
        self.presenter: Any = self.make_presenter()
        self.driver.present_with(self.presenter)
        self.buffers = self.gpu.created["buffer"] - buffers
        self.reader = SwapchainReader(headset) if options.check_every else None
        self.own: dict[int, np.ndarray] = {}
        self.idles = self.frames = self.rendered = self.chunks = self.garbage = 0
        self.results: list[Any] = []
        self.presented: list[Any] = []
        self.differences: list[int] = []

    def make_presenter(self) -> Presenter:
        headset = self.driver.headset
        parts = (self.gpu, self.scene.eyes, headset.vulkan, headset.swapchain)
        if self.options.no_imports:
            return HostPresenter(*parts, imports=False)
        return make_presenter(self.options.presenter, *parts)

    def idle(self) -> None:
        self.idles += 1
        self.gpu.poll()

    def run(self) -> None:
        driver = self.driver
        masks = driver.new_visibility_masks() or (None, None)
        tell(
            "open",
            runtime=headset.instance.runtime if (headset := driver.headset) else "",
            headset=headset.instance.headset,
            view_size=driver.view_size,
            device=headset.vulkan.name,
            space=headset.wearer.world.kind.name,
            rates=refresh_rates(headset.instance, headset.session),
            extensions=headset.instance.extensions,
            presenter=self.presenter.name,
            note=self.presenter.note,
            imports=getattr(self.presenter, "imports", None),
            buffers=self.buffers,
            mask=[None if m is None else [len(m.vertices), len(m.indices)] for m in masks],
        )
        created = self.gpu.objects_created
        gc.collect()
        gc.disable()  # as the frame loop does
        while self.frames < self.options.frames:
            self.frame(driver.wait_frame(self.idle))
        self.garbage = gc.collect()
        self.gpu.wait()
        time.sleep(0.1)
        self.results += driver.results()
        driver.close()
        self.report(created)

    def frame(self, timing: FrameTiming) -> None:
        driver = self.driver
        self.frames += 1
        self.act(timing)
        driver.begin_frame()
        if timing.should_render:
            self.render(timing)
        driver.end_frame(timing.frame_id)
        self.results += driver.results()
        for presented in driver.presented():
            self.presented.append(presented)
            self.compare(presented.image_id)

    def act(self, timing: FrameTiming) -> None:
        for action in self.driver.wearer.actions(self.chunks or 4):
            if action.kind == "chunks":
                self.chunks = action.value
            tell("action", kind=action.kind, value=action.value)
        if self.options.hands and self.frames % self.options.hands == 0:
            hands = self.driver.wearer.hands(timing.predicted_display_ns)
            tell(
                "hands",
                grips=[None if h.grip is None else h.grip.position for h in hands],
                aims=[None if h.aim is None else h.aim.position for h in hands],
                grabbing=[h.grabbing for h in hands],
            )

    def render(self, timing: FrameTiming) -> None:
        self.rendered += 1
        encoder = self.gpu.device.create_command_encoder()
        self.scene.encode(encoder)
        self.presenter.record(encoder, timing.frame_id)
        views = self.driver.locate_views(timing.predicted_display_ns)
        self.scene.set_views(views)
        serial = self.gpu.submit(encoder)
        self.presenter.submitted(serial)
        if self.options.views and self.frames % self.options.views == 0:
            tell("views", states=self.driver.states, **described(views))
        if self.reader is not None and self.frames % self.options.check_every == 0:
            self.own[timing.frame_id] = self.eyes()

    def eyes(self) -> np.ndarray:
        width, height = self.scene.eyes.size[:2]
        data = self.gpu.queue.read_texture(
            {"texture": self.scene.eyes}, {"bytes_per_row": width * 4}, (width, height, 1)
        )
        return np.frombuffer(data, np.uint8).reshape(height, width, 4)

    def compare(self, image_id: int) -> None:
        """The swapchain's bytes of a frame whose own image was kept."""
        if self.reader is None or image_id not in self.own:
            return
        shown, own = self.reader.last, self.own.pop(image_id)
        if shown is None:
            return
        self.differences.append(int(np.abs(shown.astype(int) - own).max()))
        if self.options.images:
            np.savez(self.options.images, shown=shown, own=own)

    def report(self, created: int) -> None:
        done = self.results
        costs = [p.presenter_ms for p in self.presented if p.image_id]
        tell(
            "done",
            frames=self.frames,
            rendered=self.rendered,
            idles=self.idles,
            states=self.driver.states,
            results=len(done),
            shown=sum(not r.dropped for r in done),
            missed=sum(r.missed > 0 for r in done),
            stale=sum(r.stale_run for r in done),
            in_order=[r.frame_id for r in done] == sorted({r.frame_id for r in done}),
            ages=sorted({p.image_age for p in self.presented if p.image_id}),
            presenter_ms=[float(np.percentile(costs, q)) for q in (50, 99)] if costs else None,
            skipped=self.presenter.skipped,
            host_bytes=sum(p.host_bytes for p in self.presented),
            invalid=self.driver.invalid_times,
            garbage=self.garbage,
            created=self.gpu.objects_created - created - self.read_buffers(),
            compared=len(self.differences),
            largest_difference=max(self.differences, default=None),
        )

    def read_buffers(self) -> int:
        """Reading a texture makes a buffer: this program's doing, not the presenter's."""
        return len(self.differences) + len(self.own)


def make_scene(gpu: Gpu, eye_size: tuple[int, int]) -> SceneRenderer:
    painted, components = (gpu.storage_buffer(side * side * 12) for side in (SIDE, GRID))
    ramp = np.linspace(0, 1, SIDE * SIDE * 3, dtype=np.float32)
    gpu.queue.write_buffer(painted, 0, ramp)
    gpu.queue.write_buffer(components, 0, ramp[:: (SIDE // GRID) ** 2].copy())
    sources = PanelSources(
        BufferRange(painted, 0, SIDE * SIDE * 12), BufferRange(components, 0, GRID * GRID * 12)
    )
    scene = SceneRenderer(gpu.device, eye_size, sources)
    scene.set_camera(np.full((SIDE, SIDE, 3), (200, 90, 30), np.uint8))
    scene.set_hud(render_hud(HudState(period_ms=11.1)))
    return scene


def described(views: tuple[View, View]) -> dict[str, Any]:
    return {
        "positions": [view.pose.position for view in views],
        "orientations": [view.pose.orientation for view in views],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--check-every", type=int, default=0)
    parser.add_argument("--hands", type=int, default=0)
    parser.add_argument("--views", type=int, default=0)
    parser.add_argument("--images")
    parser.add_argument("--no-imports", action="store_true")
    parser.add_argument("--presenter", default="host")
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--graphics")
    logging.basicConfig(level=logging.WARNING)
    options = parser.parse_args()
    if options.graphics:
        choices.GRAPHICS = (options.graphics,)
    try:
        Application(options).run()
    except XrEnded as error:
        tell("ended", message=str(error))
    except XrError as error:
        tell("error", kind=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
