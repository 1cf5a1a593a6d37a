"""Generation against transformers, from folders that it saved with random weights."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from cases import relative_l2
from device_runs import variant
from rich.console import Console

from app.generate.command import run_generate
from app.generate.config import GenerateConfig
from app.generate.generator import Generator
from engine.gpu import Gpu
from models.smollm2_files import LanguageModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from llama_folder import CONTEXT, CORPUS, llama, tokenizer  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.reference]

PIECE = 5
VOCABULARY = 290


def wanted(model, ids: list[int]) -> np.ndarray:
    """Logits after every token."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def generator(gpu: Gpu, folder: Path, context: int = CONTEXT, piece: int = PIECE) -> Generator:
    model = LanguageModel.read(folder)
    return Generator(gpu, model.sizes, model.parameters(), context, piece)


@pytest.mark.parametrize("chosen", ["cpu", "gpu"])
def test_every_way_to_feed_a_text_gives_its_logits(
    chosen: str, gpu: Gpu, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of awkward lengths, then one token after another to the end of the context."""
    model = llama(tmp_path)
    monkeypatch.setattr(gpu, "facts", variant(gpu, chosen))
    ids = rng.integers(VOCABULARY, size=CONTEXT).tolist()
    want = wanted(model, ids)
    made = generator(gpu, tmp_path)
    for length in (PIECE - 1, PIECE, PIECE + 1, 3 * PIECE - 1, CONTEXT - 1, CONTEXT, 1):
        made.reset()
        assert relative_l2(made.extend(ids[:length]), want[length - 1]) < 1e-5, length
    created = gpu.objects_created
    for position in range(1, CONTEXT):
        assert relative_l2(made.extend([ids[position]]), want[position]) < 1e-5, position
    assert gpu.objects_created == created
    with pytest.raises(ValueError, match="takes 1 to 0 further tokens, not 1"):
        made.extend([1])


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16, "tie_word_embeddings": False, "num_key_value_heads": 6},
        {"rms_norm_eps": 1e-2, "rope_theta": 500.0, "head_dim": 12},
    ],
    ids=["bf16", "f16, untied, all heads", "eps, theta, head"],
)
def test_what_files_may_differ_in(
    options: dict, gpu: Gpu, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = llama(tmp_path, **options)
    ids = rng.integers(VOCABULARY, size=12).tolist()
    assert relative_l2(generator(gpu, tmp_path).extend(ids), wanted(model, ids)[-1]) < 1e-5


def run(folder: Path, text: str, **options) -> dict:
    console = Console(file=io.StringIO())
    config = GenerateConfig(text, folder, json=True, **options)
    assert run_generate(config, console) == 0
    return json.loads(console.file.getvalue())


def test_the_command_adds_what_transformers_adds(gpu: Gpu, tmp_path: Path) -> None:
    model, made = llama(tmp_path, eos_token_id=None), tokenizer()
    prompt = made.encode(CORPUS[0]).ids
    assert made.decode(prompt) == CORPUS[0]
    settings = transformers.GenerationConfig(do_sample=False, max_new_tokens=30, pad_token_id=0)
    whole = model.generate(torch.tensor([prompt]), generation_config=settings)[0].tolist()
    assert len(set(whole[len(prompt) :])) > 5
    found = run(tmp_path, CORPUS[0], tokens=30)
    assert found["ids"] == whole[len(prompt) :]
    assert found["text"] == made.decode(found["ids"])
    assert (found["prompt_tokens"], found["decoded_tokens"]) == (len(prompt), 29)
    assert found["stopped"] == "tokens" and found["decode_tokens_per_s"] > 0
    # The model's own choice as an end of the text ends it, and does not belong to it.
    end = found["ids"][4]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 1]}))
    ended = run(tmp_path, CORPUS[0], tokens=30)
    assert ended["stopped"] == "end of text"
    assert ended["ids"] == found["ids"][: found["ids"].index(end)]


def test_a_text_as_long_as_the_context(gpu: Gpu, tmp_path: Path) -> None:
    llama(tmp_path, eos_token_id=None)
    console = Console(file=io.StringIO())
    assert run_generate(GenerateConfig("the" * 8, tmp_path, tokens=500), console) == 0
    streamed = console.file.getvalue()
    found = run(tmp_path, "the" * 8, tokens=500)
    assert found["stopped"] == f"the context of {CONTEXT} tokens is full"
    # The last token is predicted, but there is no room to read it.
    assert len(found["ids"]) + found["prompt_tokens"] == CONTEXT + 1
    # What is printed as it comes is the same text, but for bytes that are no whole character.
    assert streamed.replace("�", "").strip() in found["text"].replace("�", "") + "\n"
