"""What tests of plans share: equality in every field, and small plans of the two programs."""

from __future__ import annotations

import dataclasses

import numpy as np

from engine.compile import compile_graph
from engine.optim import Adam
from engine.plan import Plan
from models.vision import inference_graph, training_graph


def assert_same_plan(got: Plan, want: Plan) -> None:
    """Equal fields of equal types; constants bit by bit."""
    for field in dataclasses.fields(Plan):
        mine, other = getattr(got, field.name), getattr(want, field.name)
        if field.name == "constants":
            assert list(mine) == list(other)
            for buffer, value in other.items():
                assert mine[buffer].dtype == value.dtype and mine[buffer].shape == value.shape
                assert mine[buffer].tobytes() == np.ascontiguousarray(value).tobytes()
        else:
            # repr tells lists from tuples and the order of mappings.
            assert repr(mine) == repr(other), field.name


def small_plans() -> dict[str, Plan]:
    """The programs of models.vision at 32 x 32 pixels and depth 1."""
    return {
        "train": compile_graph(training_graph(Adam(), depth=1, size=32)),
        "infer": compile_graph(inference_graph(depth=1, size=32)),
    }
