"""The OpenXR instance and its system: who the runtime is, what it offers, what it tells."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from typing import Any

from app.xr.driver import XrError
from app.xr.openxr.binding import checked, told, xr
from app.xr.openxr.choices import DEBUG, choose_extensions
from app.xr.runtime import find_runtime

LOG = logging.getLogger(__name__)

APPLICATION = xr.ApplicationInfo("DinoVision", 1, "DinoVision", 1, xr.Version(1, 0, 34))

EVENTS = {
    xr.StructureType.EVENT_DATA_SESSION_STATE_CHANGED: xr.EventDataSessionStateChanged,
    xr.StructureType.EVENT_DATA_INSTANCE_LOSS_PENDING: xr.EventDataInstanceLossPending,
    xr.StructureType.EVENT_DATA_REFERENCE_SPACE_CHANGE_PENDING: (
        xr.EventDataReferenceSpaceChangePending
    ),
    xr.StructureType.EVENT_DATA_VISIBILITY_MASK_CHANGED_KHR: xr.EventDataVisibilityMaskChangedKHR,
}
"""Events that are acted upon, with their structures; the others are passed over."""


class XrInstance:
    """A connection to the active runtime, with the system that stands for the headset.

    `headless`: a session without graphics will be made. `debug`: the runtime's messages go to the
    log. Raises `XrError` when there is no runtime, no headset, or an extension is missing.
    """

    def __init__(self, *, headless: bool = False, debug: bool = False) -> None:
        offered = offered_extensions()
        self.extensions = choose_extensions(offered, headless=headless, debug=debug)
        self.handle: Any = _create(self.extensions)
        self._messenger: Any = None
        try:
            with told("asking for the runtime's name"):
                properties = xr.get_instance_properties(self.handle)
            self.runtime = (
                f"{properties.runtime_name.decode()} {xr.Version(properties.runtime_version)}"
            )
            self.system: Any = self._find_headset()
            with told("asking for the headset's properties"):
                self.properties = xr.get_system_properties(self.handle, self.system)
            self.headset = self.properties.system_name.decode()
            if DEBUG in self.extensions:
                self._log_messages()
        except BaseException:
            self.close()
            raise

    def _find_headset(self) -> Any:
        try:
            with told("looking for a headset"):
                return xr.get_system(
                    self.handle, xr.SystemGetInfo(xr.FormFactor.HEAD_MOUNTED_DISPLAY)
                )
        except XrError as error:
            if isinstance(error.__cause__, xr.FormFactorUnavailableError):
                raise XrError(
                    f"{self.runtime} finds no headset: connect it and switch it on"
                ) from error
            raise

    def has(self, extension: str) -> bool:
        """Whether an extension is enabled."""
        return extension in self.extensions

    def events(self) -> Iterator[Any]:
        """Take the events that are waiting, as their own structures (see `EVENTS`).

        Raises `XrLost` when the runtime is gone.
        """
        while True:
            # Not the binding's own call: it raises an exception each time nothing has happened.
            event = xr.EventDataBuffer()
            with told("asking for events"):
                result = xr.Result(xr.raw_functions.xrPollEvent(self.handle, ctypes.byref(event)))
                checked(result)
            if result == xr.Result.EVENT_UNAVAILABLE:
                return
            structure = EVENTS.get(event.type)
            if structure is not None:
                yield ctypes.cast(ctypes.byref(event), ctypes.POINTER(structure)).contents

    def _log_messages(self) -> None:
        def on_message(severity: int, kinds: int, data: Any, unused: Any) -> bool:
            level = logging.WARNING if severity >= WARNING_BIT else logging.DEBUG
            text = data.contents.message
            LOG.log(level, "%s", text.decode(errors="replace") if text else "")
            return False

        self._on_message = xr.PFN_xrDebugUtilsMessengerCallbackEXT(on_message)
        with told("asking for the runtime's messages"):
            self._messenger = xr.create_debug_utils_messenger_ext(
                self.handle,
                xr.DebugUtilsMessengerCreateInfoEXT(
                    message_severities=xr.DebugUtilsMessageSeverityFlagsEXT.ALL,
                    message_types=xr.DebugUtilsMessageTypeFlagsEXT.ALL,
                    user_callback=self._on_message,
                ),
            )

    def close(self) -> None:
        """Leave the runtime, however it fares; safe to call twice."""
        if self._messenger is not None:
            quietly(xr.destroy_debug_utils_messenger_ext, self._messenger)
        if self.handle is not None:
            quietly(xr.destroy_instance, self.handle)
        self.handle = self._messenger = None


WARNING_BIT = xr.DebugUtilsMessageSeverityFlagsEXT.WARNING_BIT.value


def quietly(destroy: Callable[[Any], Any], handle: Any) -> None:
    """Destroy a handle; a runtime that is gone may refuse."""
    try:
        destroy(handle)
    except xr.XrException as error:
        LOG.debug("%s: %s", getattr(destroy, "__name__", "destroy"), error)


def offered_extensions() -> set[str]:
    """Names of all extensions of the active runtime. Raises `XrError` when there is none."""
    try:
        with told("asking for extensions"):
            offered = xr.enumerate_instance_extension_properties()
    except XrError as error:
        raise XrError(_no_runtime()) from error
    return {extension.extension_name.decode() for extension in offered}


def _create(extensions: list[str]) -> Any:
    info = xr.InstanceCreateInfo(application_info=APPLICATION, enabled_extension_names=extensions)
    try:
        with told("starting the runtime"):
            return xr.create_instance(info)
    except XrError as error:
        raise XrError(_no_runtime()) from error


def _no_runtime() -> str:
    found = find_runtime()
    if found is None:
        return (
            "no OpenXR runtime is active: start SteamVR, WiVRn, Monado or Meta Link and make it "
            "the active runtime, or name its manifest in XR_RUNTIME_JSON"
        )
    if found.problem:
        return f"the OpenXR runtime {found.manifest} cannot be used: {found.problem}"
    return (
        f"the OpenXR runtime {found.name} ({found.manifest}, found by {found.found_by}) does not "
        "answer: start its service"
    )
