"""Options of the eval command, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.config import UsageError
from engine.implementations import Choice
from engine.specialize import Contract
from engine.storage import Storage


@dataclass(frozen=True)
class EvalConfig:
    """Measure how well a decoder paints photographs: PSNR, SSIM and MAE.

    The figures are JSON on the last line: psnr_global_db is of all pixels together, medians are
    over images. SSIM as Wang et al. 2004: Gaussian window of sigma 1.5, data range 1.
    """

    data: Path
    """Folder of photographs, with the folders below it."""
    checkpoint: Path | None = None
    """Decoder to measure. [default: the one that ships with the program]"""
    encoder: str | None = None
    """DINOv3 ViT-S/16 checkpoint, safetensors or .pth, as Hugging Face or Meta publish it, or
    random. [default: the DinoVision mini encoder where it ships, else random]"""
    whole: bool = False
    """Squeeze whole images to a square, as DINOv3's own preprocessing does, instead of taking the
    largest centred square, as previews do."""
    out: Path | None = None
    """Folder for contact_sheet.png (12 images, evenly spaced by name) and eval.json, with the
    figures of each image."""
    contract: Contract = "strict"
    """Arithmetic: strict f32, or products that round their factors to 11 bits on devices with
    matrix units, which are faster (--gpu dawn)."""
    storage: Storage = "f32"
    """How matrices of weights lie in memory: f16 is half the bytes, and rounds them to 11 bits."""
    gpu: Choice = "auto"
    """WebGPU implementation; auto: what DINOVISION_GPU says, else wgpu."""
    debug: bool = False
    """Show a traceback for expected errors too."""

    def check_usage(self) -> None:
        """Raise UsageError for the first impossible value."""
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise UsageError(f"--out {self.out} is a file: name a folder")
