"""Reports of synthetic folders: their figures, their page, and what they refuse."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.report.arms import SweepFigures
from app.report.run import run_page
from app.report.sweep import sweep_page
from app.report.text import labels, number, percent, span
from app.report.timeline import SECOND_NS, Timeline, WorstSecond
from app.telemetry.folder import open_run, open_sweep
from tests.command_line import fails
from tests.run_folders import RunModel, write_sweep

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RunModel(frames=200, slow=(50, 52, 150)).write(tmp_path_factory.mktemp("a") / "first")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = [
        RunModel(frames=60, chunks=chunks, in_flight=bound, slow=(20,), slow_ms=30 / chunks)
        for chunks in (1, 2, 4)
        for bound in (1, 2)
    ]
    models.append(RunModel(frames=60, chunks=4, in_flight=2, policy="deadline", slow=()))
    return write_sweep(tmp_path_factory.mktemp("s") / "sweep", models)


class Strict(HTMLParser):
    """Checks that elements close in order; gathers what a browser would fetch, and the text."""

    VOID = ("meta", "br", "path", "use", "rect", "circle")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self._note(attributes)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._note(attributes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, attributes: list[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key in ("src", "href", "xlink:href"):
                self.links.append(value or "")
            if key == "id":
                self.ids.append(value or "")


def checked(path: Path) -> Strict:
    """The page, which must be well formed, self-contained and free of repeated ids."""
    html = path.read_text()
    page = Strict()
    page.feed(html)
    assert page.open == []
    assert page.links and all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert not re.search(r"@import|<script|<link|url\((?!#)", html)
    assert "prefers-color-scheme: dark" in html
    # Nothing is drawn in a colour that the page cannot change.
    assert not re.search(r"#[0-9a-f]{6}", html.split("</style>", 1)[1])
    return page


def test_a_run(run: Path, capsys: Capture) -> None:
    assert main(["report", str(run)]) == 0
    shown = capsys.readouterr().out
    folder = open_run(run)
    frames = list(folder.frames())
    stale = sum(row.stale_run or 0 for row in frames)
    shown_ones = [row for row in frames if row.displayed_ns is not None]
    late = sum(row.missed != 0 for row in shown_ones)
    assert stale > 0 and late > 0
    missed = number(1000 * (stale + late) / (stale + len(shown_ones)))
    assert shown.startswith(f"Not here: {missed} of 1000 refreshes were missed while ")
    assert re.search(rf"missed +{stale + late}\n", shown)
    assert re.search(rf"an old image was repeated +{stale}\n", shown)
    times = np.array([row.frame_ms for row in frames])
    p50, p95, p99 = (number(float(np.percentile(times, q))) for q in (50, 95, 99))
    line = next(line for line in shown.splitlines() if line.startswith("frame, start"))
    assert line.split()[-4:] == [p50, p95, p99, number(float(times.max()))]
    late = sum(row.cause == "chunk" for row in frames)
    assert re.search(rf"late frames: behind a chunk in the queue +{late}\n", shown)
    for name in ("report.html", "trace.pftrace", "frames.csv", "chunks.csv"):
        assert (run / name).stat().st_size > 0 and name in shown
    page = checked(run / "report.html")
    assert f"{missed} of 1000" in page.text and "Example <GPU> & Co" in page.text
    assert page.text.count("Worst second") == 1


def test_the_trace_is_written_when_missing_or_older(run: Path, capsys: Capture) -> None:
    assert main(["report", str(run)]) == 0
    trace = run / "trace.pftrace"
    whole = trace.read_bytes()
    trace.write_bytes(b"kept")
    assert main(["report", str(run)]) == 0
    assert trace.read_bytes() == b"kept"
    os.utime(trace, (1, 1))
    assert main(["report", str(run)]) == 0
    assert trace.read_bytes() == whole


def test_a_killed_run(tmp_path: Path, capsys: Capture) -> None:
    path = RunModel(frames=60).write(tmp_path / "run", outcome="incomplete")
    text = (path / "frames.jsonl").read_text()
    (path / "frames.jsonl").write_text(text[:-50])
    assert main(["report", str(path)]) == 0
    assert "warning: The run was killed" in capsys.readouterr().out
    page = checked(path / "report.html")
    assert "The run was killed" in page.text and "outcome incomplete" in page.text
    assert re.search(r"frames\s*59", page.text)


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_hardly_any_frames(tmp_path: Path, frames: int, capsys: Capture) -> None:
    path = RunModel(frames=frames).write(tmp_path / "run")
    assert main(["report", str(path)]) == 0
    assert ("no frame of this run was shown" in capsys.readouterr().out) == (frames == 0)


def test_without_stamps(tmp_path: Path, capsys: Capture) -> None:
    path = RunModel(frames=60, stamps=False).write(tmp_path / "run")
    assert main(["report", str(path)]) == 0
    text = checked(path / "report.html").text
    assert "No GPU timestamps" in text and "from submission to observed completion" in text


def test_a_page_elsewhere(run: Path, tmp_path: Path, capsys: Capture) -> None:
    (run / "report.html").unlink(missing_ok=True)
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert checked(tmp_path / "page.html").text
    assert not (run / "report.html").exists()


def test_a_sweep(sweep: Path, capsys: Capture) -> None:
    assert main(["report", str(sweep)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Yes: the deadline policy (4 chunks, 2 in flight) misses 0 of 1000")
    arms = json.loads((sweep / "summary.json").read_text())["arms"]
    rows = [line for line in shown.splitlines() if re.match(r"(fixed|deadline) +\d", line)]
    assert len(rows) == len(arms) == 7
    for row, arm in zip(rows, arms, strict=True):
        low, high = arm["ci95"]["train_steps_per_s"]
        assert f"{number(arm['train_steps_per_s'])} ({number(low)}–{number(high)})" in row
        assert percent(arm["train_steps_per_s"] / 30.0) in row
        assert number(arm["isolated_worker_ms"]) in row
    for words in ("The best fixed setting", "renderer alone", "What telemetry itself costs"):
        assert words in shown
    page = checked(sweep / "report.html")
    for words in ("Quest 3S", "relative to 1 chunk", "period 11.1 ms", "Worst second: "):
        assert words in page.text
    assert page.text.count("deadline 4/2") == 1  # a row of the frame times


def test_a_sweep_whose_runs_are_gone_still_reports(sweep: Path, tmp_path: Path) -> None:
    for name in ("sweep.json", "summary.json"):
        (tmp_path / name).write_text((sweep / name).read_text())
    assert main(["report", str(tmp_path)]) == 0
    text = checked(tmp_path / "report.html").text
    assert "Arms: training and inference at 90 Hz" in text and "Worst second" not in text


def test_several_jobs_are_told_apart(tmp_path: Path) -> None:
    models = [RunModel(frames=40, job=job, slow=()) for job in ("train", "infer")]
    page = sweep_page(open_sweep(write_sweep(tmp_path / "sweep", models, repeats=1)))
    assert page.answer == "Yes: unnoticed in 2 of 2 settings."
    assert [line.split(":")[0] for line in page.details if "policy" in line] == [
        "training at 90 Hz",
        "inference at 90 Hz",
    ]
    assert "training steps a second" in page.details[0]


def test_two_runs(run: Path, tmp_path: Path, capsys: Capture) -> None:
    other = RunModel(frames=100, policy="deadline", slow=()).write(tmp_path / "second")
    assert main(["report", str(run), str(other)]) == 0
    shown = capsys.readouterr().out
    first = run_page(open_run(run)).facts[0][0]
    assert shown.startswith(f"second misses 0 of 1000 refreshes, first {first}; ")
    assert re.search(rf"missed of 1000 +{first} +0 +-100.0 %\n", shown)
    page = checked(run / "comparison.html")
    assert "Worst second of first" in page.text and "Worst second of second" in page.text


def test_two_sweeps(sweep: Path, tmp_path: Path, capsys: Capture) -> None:
    models = [RunModel(frames=40, chunks=2, slow=()), RunModel(frames=40, chunks=16, slow=())]
    other = write_sweep(tmp_path / "other", models, repeats=1)
    assert main(["report", str(sweep), str(other)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("At best sweep misses 0 of 1000 at ")
    assert len(re.findall(r"^2/1 ", shown, re.MULTILINE)) == 1 and "16/1" not in shown
    assert "Hollow: sweep. Filled: other." in checked(sweep / "comparison.html").text


def test_what_cannot_be_reported(run: Path, sweep: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "is no folder" in fails(capsys, 1, "report", str(tmp_path / "none"))
    assert "has no run.json" in fails(capsys, 1, "report", str(tmp_path))
    assert "cannot be compared" in fails(capsys, 1, "report", str(run), str(sweep))
    assert "folder" in fails(capsys, 2, "report").lower()
    assert "--out" in fails(capsys, 2, "report", str(run), "--out", str(tmp_path))
    (tmp_path / "sweep.json").write_text("{}")
    for summary, named in (
        ('{"arms": []}', "no baselines"),
        ('{"arms": 3, "baselines": {}}', "arms is no list"),
        ('{"arms": [3], "baselines": {}}', "arms is no list"),
    ):
        (tmp_path / "summary.json").write_text(summary)
        assert named in fails(capsys, 1, "report", str(tmp_path))


def test_a_summary_may_not_name_folders_elsewhere(sweep: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    summary = json.loads((sweep / "summary.json").read_text())
    summary["arms"][0]["folders"] = [os.path.relpath(run, tmp_path)]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert main(["report", str(tmp_path)]) == 1


def test_without_matplotlib(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install matplotlib" in fails(capsys, 1, "report", str(run))


def test_a_full_disk(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def full(path: Path, data: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("app.report.command.write_atomic", full)
    line = fails(capsys, 1, "report", str(run))
    assert "cannot write" in line and "report.html: No space left on device" in line


def test_the_best_arm(sweep: Path) -> None:
    (group,) = SweepFigures.parse(open_sweep(sweep)).groups
    fixed = [arm for arm in group.arms if arm.policy == "fixed"]
    unnoticed = [arm for arm in fixed if (arm.missed or 0) <= 1]
    assert 0 < len(unnoticed) < len(fixed)
    assert group.best("fixed") == max(unnoticed, key=lambda arm: arm.rate or 0)
    assert group.best("greedy") is None
    best = group.best("deadline")
    assert best is not None and best.label == "deadline 4/2"


def test_the_worst_second_is_found_in_the_middle_of_a_run(tmp_path: Path) -> None:
    model = RunModel(frames=900, slow=(100, 600, 620, 650))
    folder = open_run(model.write(tmp_path / "run"))
    worst = WorstSecond()
    for row in model.frame_rows:
        worst.add(row)
    second = worst.found(folder)
    assert second is not None
    shown = [
        row
        for row in model.frame_rows
        if 0 <= row.predicted_display_ns - second.start_ns < SECOND_NS
    ]
    missed = [row.missed_refreshes for row in shown]
    assert second.missed == sum(missed) > max(missed)
    late = [(row.predicted_display_ns, row.missed_refreshes) for row in model.frame_rows]
    assert 600 - 90 < sum(at < second.start_ns for at, _ in late) < 600
    timeline = Timeline.read(second)
    assert len(timeline.stale) == sum(row.stale_run or 0 for row in shown)
    assert len(timeline.refreshes) + len(timeline.stale) == pytest.approx(90, abs=1)
    assert timeline.late and set(timeline.late) <= set(timeline.eyes)
    assert not timeline.observed
    for begin, end in timeline.eyes + timeline.chunks["train"] + timeline.chunks["infer"]:
        assert end >= second.start_ns and begin < second.start_ns + SECOND_NS


def test_without_misses_the_second_with_the_longest_frame(tmp_path: Path) -> None:
    model = RunModel(frames=400, slow=(), chunk_ms=1.0)
    longest = max(model.frame_rows, key=lambda row: row.frame_ms or 0)
    worst = WorstSecond()
    for row in model.frame_rows:
        worst.add(row)
    second = worst.found(open_run(model.write(tmp_path / "run")))
    assert second is not None and second.missed == 0
    assert second.longest_ms == longest.frame_ms
    assert 0 <= longest.predicted_display_ns - second.start_ns < SECOND_NS


def test_numbers_and_names() -> None:
    assert [number(v) for v in (None, 0.0, 0.123, 12.34, 123.4, 7)] == [
        "–", "0", "0.12", "12.3", "123", "7",
    ]  # fmt: skip
    assert [percent(share) for share in (None, 0.931, 0.0042)] == ["–", "93\u00a0%", "0.4\u00a0%"]
    assert span(2.0, (1.5, 2.5)) == "2.00 (1.50–2.50)" and span(2.0, None) == "2.00"
    assert labels([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert labels([Path("/x/a"), Path("/y/a")]) == ["x/a", "y/a"]
