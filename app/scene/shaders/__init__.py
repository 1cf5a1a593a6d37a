"""WGSL of the scene, joined from the files of this folder."""

from importlib import resources


def load_shader(*names: str) -> str:
    """Text of the named files, in order: declarations first, the code that uses them last."""
    folder = resources.files(__name__)
    return "\n".join((folder / f"{name}.wgsl").read_text("utf-8") for name in names)
