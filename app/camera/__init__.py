"""Cameras: webcam, video, image folder and photo walk, reduced to the newest square frame."""

from app.camera.capture import CaptureThread
from app.camera.open import open_camera
from app.camera.photos import held_out, load_photos, rehearsed
from app.camera.source import CameraError, CameraSource, Frame, Image

__all__ = [
    "CameraError",
    "CameraSource",
    "CaptureThread",
    "Frame",
    "Image",
    "held_out",
    "load_photos",
    "open_camera",
    "rehearsed",
]
