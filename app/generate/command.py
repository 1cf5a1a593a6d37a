"""The `generate` command: a text, continued."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from typing import IO

import numpy as np
from rich.console import Console

from app.config import UsageError
from app.contracts import open_for
from app.generate.config import GenerateConfig
from app.generate.generator import Generator
from app.generate.sampling import Sampling
from app.generate.text import Text
from app.interrupt import Interrupt
from app.progress import Progress
from app.tables import to_reader
from engine.errors import CheckpointError
from models.smollm2_files import LanguageModel

SMALLEST_CONTEXT = 256


@dataclass(frozen=True)
class Outcome:
    """What was generated, and how fast: the prompt at once, then one token after another."""

    text: str
    ids: list[int]
    stopped: str
    """Why: end of text, tokens, a full context, or interrupted."""
    prompt_tokens: int
    prompt_s: float
    decoded_tokens: int
    """Tokens that the model has read one by one; it never reads its last one."""
    decode_s: float
    adapter: str

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt per second."""
        return self.prompt_tokens / self.prompt_s

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second one by one; None when there was only the prompt's."""
        return self.decoded_tokens / self.decode_s if self.decoded_tokens else None

    def to_json(self) -> str:
        """One line."""
        rates = {
            "prompt_tokens_per_s": _rounded(self.prompt_rate),
            "decode_tokens_per_s": _rounded(self.decode_rate),
        }
        return json.dumps({**asdict(self), **rates}, ensure_ascii=False)

    def __str__(self) -> str:
        parts = [f"prompt {self.prompt_tokens} tokens, {self.prompt_rate:.1f} tokens/s"]
        if self.decode_rate is not None:
            parts.append(f"{len(self.ids)} tokens added, {self.decode_rate:.1f} tokens/s")
        return "; ".join([*parts, f"stopped: {self.stopped}"])


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 2)


def run_generate(config: GenerateConfig, console: Console | None = None) -> int:
    """Generate and print; 0. Raises UsageError and EngineError."""
    config.check()
    model, text = LanguageModel.read(config.model), Text(config.model)
    ids = _prompt(config, model, text)
    console = console or Console(highlight=False)
    progress = Progress()
    with contextlib.closing(progress), to_reader(console):
        gpu = open_for(config.gpu, config.contract, progress.say)
        progress.say(f"{config.model.name or config.model} on {gpu.name}")
        context = min(model.context, _room(len(ids) + config.tokens))
        generator = Generator(gpu, model.sizes, model.parameters(), context, storage=config.storage)
        if generator.kept:
            kept = ", ".join(generator.kept)
            progress.say(f"--storage f16: values that it cannot hold, so that in f32: {kept}")
        generator.warm_up()
        outcome = _generate(config, generator, model, text, ids, console.file)
        if config.json:
            print(outcome.to_json(), file=console.file)
        progress.say(str(outcome))
    return 0


def _prompt(config: GenerateConfig, model: LanguageModel, text: Text) -> list[int]:
    """The prompt's tokens, known to fit."""
    if text.vocabulary > model.sizes.vocabulary:
        raise CheckpointError(
            f"{text.path} has {text.vocabulary} tokens, the model knows {model.sizes.vocabulary}: "
            "they do not belong together"
        )
    ids = text.encode(config.text)
    if not ids and model.begin is not None:
        ids = [model.begin]
    if not ids:
        raise UsageError("the text is empty: give something to continue")
    if len(ids) >= model.context:
        raise UsageError(
            f"the text has {len(ids)} tokens; with at least one more, this model's context is "
            f"{model.context}: shorten it"
        )
    return ids


def _room(tokens: int) -> int:
    """A context for so many tokens: a power of two, so that few plans are compiled."""
    return max(SMALLEST_CONTEXT, 1 << (tokens - 1).bit_length())


def _generate(
    config: GenerateConfig,
    generator: Generator,
    model: LanguageModel,
    text: Text,
    prompt: list[int],
    out: IO[str],
) -> Outcome:
    sampling = Sampling(config.temperature, config.top_k, config.top_p)
    rng = np.random.default_rng(config.seed)
    stream, added, stopped = text.stream(), [], ""
    with Interrupt() as interrupt:
        begin = time.perf_counter()
        logits = generator.extend(prompt)
        prefilled = time.perf_counter()
        while not stopped:
            token = sampling.choose(logits, rng)
            if token in model.ends:
                stopped = "end of text"
                break
            added.append(token)
            if not config.json:
                print(stream.add(token), end="", file=out, flush=True)
            if interrupt.requested:
                stopped = "interrupted"
            elif len(added) == config.tokens:
                stopped = "tokens"
            elif generator.position == generator.context:
                stopped = f"the context of {generator.context} tokens is full"
            else:
                logits = generator.extend([token])
        end = time.perf_counter()
    if not config.json:
        print(file=out)
    return Outcome(
        text=text.decode(added),
        ids=added,
        stopped=stopped,
        prompt_tokens=len(prompt),
        prompt_s=prefilled - begin,
        decoded_tokens=generator.position - len(prompt),
        decode_s=end - prefilled,
        adapter=generator.gpu.name,
    )
