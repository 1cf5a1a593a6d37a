"""Files that ship with the program: photographs, default weights and their licences."""

from pathlib import Path


def photos_dir() -> Path:
    """The folder that holds `train/`, `val/` and `ATTRIBUTION.csv`."""
    return Path(__file__).resolve().parent / "photos"


def encoder_file() -> Path:
    """Where the mini encoder lies, if one ships with this version."""
    return Path(__file__).resolve().parent / "encoder.safetensors"


def decoder_file() -> Path:
    """Where the trained default decoder lies, if one ships with this version."""
    return Path(__file__).resolve().parent / "decoder.safetensors"
