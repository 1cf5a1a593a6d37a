"""What learning does to the decoder in a session: held-out PSNR over time."""

from __future__ import annotations

import math

from app.telemetry.rows import QualityRow


class Adaptation:
    """Follows quality rows; the first one is of the decoder as the session found it."""

    def __init__(self) -> None:
        self.first_db: float | None = None
        self.last_db: float | None = None
        self.lowest_db: float | None = None
        self.camera_db: float | None = None
        """Of the camera image painted last with the adapting weights."""
        self.passed_s: dict[int, float] = {}
        """When a whole number of dB above the first figure was first reached, seconds after it."""
        self._first_ns = 0
        self._best_db = -math.inf

    def add(self, row: QualityRow) -> None:
        """Take the next figure; one that is not finite counts as none."""
        db = row.held_out_db
        self.camera_db = row.camera_db if row.camera_db is not None else self.camera_db
        if db is None:
            return
        if self.first_db is None or self.lowest_db is None:
            self.first_db = self.lowest_db = self._best_db = db
            self._first_ns = row.measured_ns
        for whole in range(math.floor(self._best_db) + 1, math.floor(db) + 1):
            self.passed_s[whole] = (row.measured_ns - self._first_ns) / 1e9
        self._best_db = max(self._best_db, db)
        self.last_db, self.lowest_db = db, min(db, self.lowest_db)

    def to_dict(self) -> dict[str, object]:
        """For `summary.json`."""
        return {
            "held_out_db": [_rounded(self.first_db), _rounded(self.last_db)],
            "held_out_lowest_db": _rounded(self.lowest_db),
            "held_out_passed_s": {str(db): round(s, 3) for db, s in self.passed_s.items()},
            "camera_db": _rounded(self.camera_db),
        }


def _rounded(db: float | None) -> float | None:
    return None if db is None else round(db, 3)
