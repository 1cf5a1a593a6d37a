"""What a session tells of itself: on the HUD, in the progress line, in its summary."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.preview.actions import help_lines
from app.scene.hud import HudState
from app.telemetry.statistics import Statistics
from app.telemetry.summary import Summary

if TYPE_CHECKING:
    from app.preview.live import LiveSession


def hud_state(session: LiveSession) -> HudState:
    """All that the HUD shows."""
    statistics, tenant = session.records.statistics, session.tenant
    return session.dashboard.state(
        help_lines() if session.controls.help else (),
        period_ms=1e3 / session.config.hz,
        missed=statistics.missed,
        missed_per_1000=statistics.missed_per_1000,
        chunks=tenant.chunks,
        in_flight=tenant.policy.in_flight,
        policy=tenant.policy.name,
        job=tenant.mode,
        training=tenant.training and not session.train.diverged,
        train_steps=session.network.step,
        loss=session.train.loss,
        camera_db=session.infer.psnr_db,
        before=session.infer.before,
        camera=session.camera.error or session.config.camera,
        camera_age_ms=session.camera.age_ms(time.perf_counter_ns()),
        encoder_note=session.network.encoder.note,
        encoder_is_random=session.network.encoder.is_random,
        adapter=session.gpu.name,
        recording=session.records.recording,
    )


def progress_line(session: LiveSession, elapsed: float) -> str:
    """How far a session has come after so many seconds."""
    statistics, held_out = session.records.statistics, session.held_out
    parts = [f"{elapsed:5.1f} s", f"{statistics.frames} frames"]
    parts.append(f"{statistics.missed_per_1000:.0f} of 1000 missed")
    parts.append(f"{session.train.runs} steps")
    if held_out is not None and held_out.psnr_db is not None:
        parts.append(f"held-out {held_out.psnr_db:.1f} dB")
    return "  ".join(parts)


def summary(session: LiveSession, outcome: str, statistics: Statistics) -> dict[str, object]:
    """`summary.json`: of the whole session, or of a part that `statistics` are of."""
    losses, policy = session.train.losses, session.tenant.policy
    first_db, last_db = session.psnr_db
    presenter = session.driver.presenter
    facts = Summary(
        outcome=outcome,
        chunks=session.tenant.chunks,
        in_flight=policy.in_flight,
        policy=policy.name,
        adapter=session.gpu.name,
        gpu=session.gpu.implementation,
        objects_created_in_loop=session.objects_created,
        clock_error_us=round(session.clock.error_us, 3) if session.clock else None,
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        psnr_first_db=first_db,
        psnr_last_db=last_db,
    )
    extra = {
        "job": session.tenant.mode,
        "hz": session.config.hz,
        "camera": session.config.camera,
        "encoder": session.network.encoder.note,
        "decoder": session.network.start.note,
        "contract": session.gpu.contract,
        "presenter": presenter.name if presenter is not None else None,
        **statistics.adaptation.to_dict(),
    }
    return facts.to_dict(statistics, extra)
