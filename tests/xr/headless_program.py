"""A headless session for the tests: poses and pacing. Prints one JSON object a line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.headless import HeadlessDriver
from app.xr.openxr.probe import probe


def tell(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=100)
    options = parser.parse_args()
    try:
        tell("probe", **dataclasses.asdict(probe()))
        driver = HeadlessDriver(hz=90.0)
        driver.open()
        results = []
        for _ in range(options.frames):
            timing = driver.wait_frame(lambda: None)
            actions = driver.wearer.actions(4)
            driver.begin_frame()
            left, right = driver.locate_views(timing.predicted_display_ns)
            driver.end_frame(timing.frame_id)
            driver.frame_completed(timing.frame_id, timing.due_ns)
            results += driver.results()
            tell(
                "frame",
                positions=[left.pose.position, right.pose.position],
                fov=dataclasses.astuple(left.fov),
                actions=[action.kind for action in actions],
                hands=[hand.grip is not None for hand in driver.wearer.hands(timing.due_ns)],
            )
        driver.close()
        tell("done", states=driver.states, shown=sum(not result.dropped for result in results))
    except XrError as error:
        tell("error", kind=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
