"""Both presenters on a stand-in for the session: pixels, handles, what passes through the host.

Runs in a process of its own, which the runtime's C library needs. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from typing import Any
from unittest.mock import patch

import numpy as np

from app.xr.openxr import shared_images
from app.xr.openxr.presenters import make_presenter
from app.xr.openxr.vulkan_device import vk
from app.xr.presenter import Presenter, PresenterChoice
from engine.gpu import Gpu
from tests.xr.stand_in import StandIn
from tests.xr.swapchain_reader import SwapchainReader

EYE = (70, 41)
"""Odd enough for rows that need padding where images become buffers."""


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def handles() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


class Program:
    def __init__(self) -> None:
        self.gpu, self.session = Gpu.open("dawn"), StandIn(EYE)
        self.width, self.height = self.session.swapchain.size
        self.eyes = self.gpu.device.create_texture(
            size=(self.width, self.height, 1),
            format="rgba8unorm-srgb",
            usage="COPY_SRC|COPY_DST|RENDER_ATTACHMENT",
        )
        self.frames = 0

    def presenter(self, choice: PresenterChoice) -> Presenter:
        session = self.session
        return make_presenter(choice, self.gpu, self.eyes, session.vulkan, session.swapchain)

    def draw(self, picture: np.ndarray) -> None:
        layout = {"bytes_per_row": 4 * self.width, "rows_per_image": self.height}
        size = (self.width, self.height, 1)
        self.gpu.queue.write_texture({"texture": self.eyes}, picture, layout, size)

    def submit(self, presenter: Presenter) -> None:
        self.frames += 1
        encoder = self.gpu.device.create_command_encoder()
        presenter.record(encoder, self.frames)
        presenter.submitted(self.gpu.submit(encoder))

    def frame(self, presenter: Presenter) -> None:
        """A frame, shown with its own image."""
        self.submit(presenter)
        self.gpu.wait()
        self.gpu.take_completions()
        assert presenter.ready(self.frames)
        assert presenter.present() == self.frames

    def pixels(self) -> None:
        """The same eye images through both presenters, into the same images."""
        reader = SwapchainReader(self.session)
        generator = np.random.default_rng(0)
        shape = (self.height, self.width, 4)
        pictures = [generator.integers(0, 256, shape, np.uint8) for _ in range(7)]
        shown = {}
        for choice in ("host", "shared"):
            presenter = self.presenter(choice)
            assert presenter.name == choice, presenter.note
            arrived = []
            for picture in pictures:
                self.draw(picture)
                self.frame(presenter)
                assert reader.last is not None
                arrived.append(reader.last)
            presenter.close()
            shown[choice] = np.stack(arrived)
        reader.close()
        tell(
            "pixels",
            host=int(np.abs(shown["host"].astype(int) - pictures).max()),
            between=int(np.abs(shown["host"].astype(int) - shown["shared"]).max()),
            spread=[float(eye.std()) for eye in np.split(shown["shared"], 2, axis=2)],
        )

    def newest(self) -> None:
        """Several images at once: the newest is shown, and only as many as there are slots."""
        presenter: Any = self.presenter("shared")
        for _ in range(5):
            self.submit(presenter)
        first = self.frames - 4
        early = presenter.present()
        self.gpu.wait()
        tell(
            "newest",
            early=early,
            first=first,
            shown=presenter.present(),
            skipped=presenter.skipped,
            again=presenter.present(),
        )
        presenter.close()

    def run(self, frames: int) -> None:
        """Many frames: nothing is made, and no handle is left."""
        before = handles()
        made = self.gpu.created["buffer"]
        with patch.object(vk, "vkCreateBuffer") as buffers, patch.object(vk, "vkMapMemory") as maps:
            presenter: Any = self.presenter("shared")
            for _ in range(20):
                self.frame(presenter)
            gc.collect()
            gc.disable()
            created, objects, open_files = self.gpu.objects_created, len(gc.get_objects()), []
            for number in range(frames):
                self.frame(presenter)
                if number % 100 == 0:
                    open_files.append(handles())
            objects = len(gc.get_objects()) - objects
            gc.enable()
            tell(
                "frames",
                open_files=sorted(set(open_files)),
                objects=objects,
                garbage=gc.collect(),
                created=self.gpu.objects_created - created,
                buffers=self.gpu.created["buffer"] - made,
                vulkan_buffers=buffers.call_count + maps.call_count,
                host_bytes=presenter.host_bytes,
                skipped=presenter.skipped,
            )
        presenter.close()
        tell("closed", before=before, after=self.settled())

    def lost(self) -> None:
        """Sessions that end at the worst moment: drawn, not shown; recorded, not submitted."""
        before = self.settled()
        for _ in range(3):
            presenter = self.presenter("shared")
            self.frame(presenter)
            self.submit(presenter)
            presenter.record(self.gpu.device.create_command_encoder(), self.frames + 1)
            presenter.close()
            presenter.close()
        tell("lost", before=before, after=self.settled())

    def refused(self) -> None:
        """Dawn takes no image: the host presenter, with the reason."""
        before = self.settled()
        extras = shared_images._extras()
        refusal = RuntimeError("no such memory\nand more")
        with patch.object(extras, "import_shared_texture_memory", side_effect=refusal):
            presenter = self.presenter("shared")
        self.frame(presenter)
        told = (presenter.name, presenter.note)
        assert presenter.host_bytes >= 4 * self.width * self.height
        presenter.close()
        unasked = self.presenter("auto")
        unasked.close()
        tell("refused", told=told, auto=unasked.name, before=before, after=self.settled())

    def settled(self) -> int:
        """Open files, once Dawn has let go of what it no longer needs."""
        self.submit_nothing()
        gc.collect()
        return handles()

    def submit_nothing(self) -> None:
        for _ in range(2):
            self.gpu.submit(self.gpu.device.create_command_encoder())
            self.gpu.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1000)
    options = parser.parse_args()
    program = Program()
    program.pixels()
    program.newest()
    program.run(options.frames)
    program.lost()
    program.refused()


if __name__ == "__main__":
    main()
