"""Live settings: what each action does to the running session."""

from __future__ import annotations

from itertools import pairwise

from app.preview.actions import Action, Kind
from app.preview.dashboard import Dashboard
from app.scene.mirror import Mirror
from app.scene.renderer import SceneRenderer
from app.tenancy.jobs import InferJob
from app.tenancy.policy import POLICIES, make_policy
from app.tenancy.tenant import MODES, Tenant

MAX_IN_FLIGHT = 16


class Controls:
    """Applies actions; quitting, saving and recording are wishes that the preview fulfils."""

    def __init__(
        self,
        tenant: Tenant,
        infer: InferJob,
        scene: SceneRenderer,
        mirror: Mirror | None,
        dashboard: Dashboard,
    ) -> None:
        self.quit = self.help = False
        self._hud_wanted = scene.hud_visible
        self._wishes: set[Kind] = set()
        self._tenant, self._infer, self._dashboard = tenant, infer, dashboard
        self._scene, self._mirror = scene, mirror

    def apply(self, action: Action) -> None:
        """Carry one action out, and say what it did on the HUD."""
        {
            Kind.CHUNKS: self._chunks,
            Kind.IN_FLIGHT: self._in_flight,
            Kind.POLICY: self._policy,
            Kind.TRAIN: self._train,
            Kind.JOB: self._job,
            Kind.COMPARE: self._compare,
            Kind.VIEW: self._view,
            Kind.HUD: self._hud,
            Kind.RECORD: self._record,
            Kind.SAVE: self._save,
            Kind.HELP: self._help,
            Kind.RESET_VIEW: self._reset_view,
            Kind.QUIT: self._quit,
        }[action.kind](action.value)

    def take(self, wish: Kind) -> bool:
        """Whether `wish` (SAVE, RECORD, RESET_VIEW) was uttered since the last call."""
        uttered = wish in self._wishes
        self._wishes.discard(wish)
        return uttered

    def _chunks(self, value: int) -> None:
        self._tenant.chunks = value
        self._dashboard.say(f"{value} chunk{'s' if value > 1 else ''} per job")

    def _in_flight(self, value: int) -> None:
        policy = self._tenant.policy
        policy.in_flight = min(MAX_IN_FLIGHT, max(1, policy.in_flight + value))
        self._dashboard.say(f"in-flight bound {policy.in_flight}")

    def _policy(self, value: int) -> None:
        policy = self._tenant.policy
        name = POLICIES[(POLICIES.index(policy.name) + 1) % len(POLICIES)]
        self._tenant.policy = make_policy(name, policy.in_flight)
        self._dashboard.say(f"{name} policy")

    def _train(self, value: int) -> None:
        self._tenant.training = not self._tenant.training
        self._dashboard.say("training on" if self._tenant.training else "training paused")

    def _job(self, value: int) -> None:
        busy = [mode for mode, jobs in MODES.items() if jobs]
        following = dict(pairwise(busy))
        self._tenant.mode = following.get(self._tenant.mode, busy[0])
        self._dashboard.say(f"job: {self._tenant.mode}")

    def _compare(self, value: int) -> None:
        self._infer.before = not self._infer.before
        weights = "weights of the start" if self._infer.before else "newest weights"
        self._dashboard.say(f"painting with the {weights}")

    def _view(self, value: int) -> None:
        if self._mirror is not None:
            self._mirror.view = "left" if self._mirror.view == "both" else "both"

    def _hud(self, value: int) -> None:
        self._hud_wanted = not self._hud_wanted
        self._scene.hud_visible = self._hud_wanted or self.help

    def _record(self, value: int) -> None:
        self._wishes.add(Kind.RECORD)

    def _save(self, value: int) -> None:
        self._wishes.add(Kind.SAVE)

    def _reset_view(self, value: int) -> None:
        self._wishes.add(Kind.RESET_VIEW)

    def _help(self, value: int) -> None:
        self.help = not self.help
        self._scene.hud_visible = self._hud_wanted or self.help  # the help is drawn on the HUD
        self._dashboard.refresh()

    def _quit(self, value: int) -> None:
        self.quit = True
