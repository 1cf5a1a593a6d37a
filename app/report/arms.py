"""The arms of a sweep and how they compare; what counts as the best one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.report.figures import UNNOTICED_PER_1000
from app.report.text import chunks
from app.telemetry.folder import SweepFolder
from app.telemetry.recorder import TelemetryError

Interval = tuple[float, float]


@dataclass(frozen=True)
class Arm:
    """One setting of a sweep, or one of its baselines, with its figures by name."""

    name: str
    folders: tuple[str, ...]
    chunks: int | None
    in_flight: int | None
    policy: str
    job: str
    hz: float | None
    values: Mapping[str, float]
    ci95: Mapping[str, Interval]

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Arm:
        """An arm of `summary.json`; what it lacks is unknown."""
        ci95, folders = item.get("ci95"), item.get("folders")
        numbers = {key: value for key, value in item.items() if _is_number(value)}
        return cls(
            name=str(item.get("name", "")),
            folders=tuple(map(str, folders)) if isinstance(folders, list) else (),
            chunks=_whole(numbers.get("chunks")),
            in_flight=_whole(numbers.get("in_flight")),
            policy=str(item.get("policy", "")),
            job=str(item.get("job", "")),
            hz=numbers.get("hz"),
            values=numbers,
            ci95={key: (v[0], v[1]) for key, v in _pairs(ci95)},
        )

    @property
    def label(self) -> str:
        """Short, for plots: chunks / in flight, and the policy unless it is the fixed one."""
        cut = f"{self.chunks}/{self.in_flight}"
        return cut if self.policy == "fixed" else f"{self.policy} {cut}"

    @property
    def in_words(self) -> str:
        """For sentences."""
        return f"{chunks(self.chunks)}, {self.in_flight} in flight"

    @property
    def rate_name(self) -> str:
        """The metric of the network's throughput: training steps unless it only infers."""
        return "infer_per_s" if self.job == "infer" else "train_steps_per_s"

    @property
    def rate(self) -> float | None:
        """That metric, per second."""
        return self.values.get(self.rate_name)

    @property
    def allowed_share(self) -> float | None:
        """`rate` as a share of what the GPU time that the renderer leaves allows."""
        allowed = self.values.get("allowed_steps_per_s")
        return self.rate / allowed if self.rate is not None and allowed else None

    @property
    def missed(self) -> float | None:
        """Missed refreshes of 1000."""
        return self.values.get("missed_per_1000")

    @property
    def unnoticed(self) -> bool:
        """Whether so few refreshes are missed that a wearer is taken not to notice."""
        return self.missed is not None and self.missed <= UNNOTICED_PER_1000


@dataclass(frozen=True)
class Group:
    """Arms that differ only in chunks, bound and policy: of one job and refresh rate."""

    job: str
    hz: float | None
    arms: tuple[Arm, ...]

    @property
    def title(self) -> str:
        """Job and rate in words."""
        job = {"both": "training and inference", "train": "training", "infer": "inference"}
        return job.get(self.job, self.job) + (f" at {self.hz:g} Hz" if self.hz else "")

    @property
    def work(self) -> str:
        """What `Arm.rate` counts."""
        return "inferences" if self.job == "infer" else "training steps"

    def best(self, *policies: str) -> Arm | None:
        """Of the arms of these policies (all without one): the fastest that goes unnoticed.

        When none does, the one that misses least; None without arms that were measured.
        """
        arms = [arm for arm in self.arms if not policies or arm.policy in policies]
        arms = [arm for arm in arms if arm.missed is not None]
        unnoticed = [arm for arm in arms if arm.unnoticed]
        if unnoticed:
            return max(unnoticed, key=lambda arm: arm.rate or 0.0)
        return min(arms, key=lambda arm: (arm.missed or 0.0, -(arm.rate or 0.0)), default=None)


@dataclass(frozen=True)
class SweepFigures:
    """A sweep's `summary.json`, parsed."""

    folder: SweepFolder
    groups: tuple[Group, ...]
    solo_render: tuple[Arm, ...]
    """The renderer alone, one for each refresh rate."""
    solo_worker: tuple[Arm, ...]
    """The network alone."""
    telemetry: tuple[tuple[str, Arm, Arm], ...]
    """What telemetry costs: an arm's name, its figures with it, and without."""

    @classmethod
    def parse(cls, folder: SweepFolder) -> SweepFigures:
        """Raises `TelemetryError` when it is damaged."""
        where = f"{folder.path / 'summary.json'}"
        baselines = folder.summary.get("baselines")
        if not isinstance(baselines, dict):
            raise TelemetryError(f"{where} is damaged: it has no baselines")
        arms = [Arm.parse(item) for item in _objects(folder.summary, "arms", where)]
        untraced = _objects(baselines, "no_telemetry", where)
        return cls(
            folder,
            tuple(
                Group(job, hz, tuple(arm for arm in arms if (arm.job, arm.hz) == (job, hz)))
                for job, hz in dict.fromkeys((arm.job, arm.hz) for arm in arms)
            ),
            tuple(Arm.parse(item) for item in _objects(baselines, "solo_render", where)),
            tuple(Arm.parse(item) for item in _objects(baselines, "solo_worker", where)),
            tuple(
                (str(item.get("arm")), Arm.parse(item["with"]), Arm.parse(item["without"]))
                for item in untraced
                if isinstance(item.get("with"), dict) and isinstance(item.get("without"), dict)
            ),
        )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Those of all groups."""
        return tuple(arm for group in self.groups for arm in group.arms)

    def renderer_alone(self, group: Group) -> Arm | None:
        """The group's baseline without a network."""
        return next((arm for arm in self.solo_render if arm.hz in (None, group.hz)), None)


def _objects(mapping: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    value = mapping.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TelemetryError(f"{where} is damaged: {key} is no list of JSON objects")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _pairs(ci95: object) -> Iterable[tuple[str, Sequence[float]]]:
    if not isinstance(ci95, dict):
        return
    for key, value in ci95.items():
        if isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)):
            yield key, value
