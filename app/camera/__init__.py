"""Cameras: webcam, video, image folder and photo walk, reduced to the newest square frame."""

from app.camera.capture import CaptureThread
from app.camera.open import open_camera
from app.camera.photos import held_out, load_photos
from app.camera.source import CameraError, CameraSource, Frame

__all__ = [
    "CameraError",
    "CameraSource",
    "CaptureThread",
    "Frame",
    "held_out",
    "load_photos",
    "open_camera",
]
