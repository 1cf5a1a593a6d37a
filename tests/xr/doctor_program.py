"""The doctor's OpenXR section for the tests, as JSON objects, one a line.

The first argument is the program with which its process of its own is started: it needs the
runtime's C library as well.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys

from app.doctor_openxr import openxr_lines

if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[1])
    for line in openxr_lines():
        print(json.dumps({"event": line.label, **dataclasses.asdict(line)}), flush=True)
