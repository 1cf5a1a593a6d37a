"""Options, sampling, model folders and the memory that programs share: what needs no device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import UsageError
from app.generate.config import GenerateConfig
from app.generate.sampling import Sampling
from engine import ops
from engine.check import check_plan
from engine.compile import compile_graph
from engine.errors import CheckpointError, GraphError
from engine.graph import Graph
from models.smollm2 import SmolLm2Config
from models.smollm2_cached import continuation
from models.smollm2_files import LanguageModel

SMOLLM2_135M = {
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tokens": 0}, "--tokens must be at least 1, not 0"),
        ({"temperature": -1.0}, "--temperature must be at least 0, not -1"),
        ({"temperature": float("nan")}, "--temperature must be at least 0, not nan"),
        ({"temperature": 1.0, "top_k": 0}, "--top-k must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "--top-p must be above 0"),
        ({"top_p": 0.5}, "need a --temperature"),
        ({"seed": -1}, "--seed must be at least 0"),
    ],
)
def test_impossible_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        GenerateConfig("text", Path("model"), **options).check()


def test_sampling_draws_from_what_is_kept(rng: np.random.Generator) -> None:
    p = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
    logits = np.log(p).astype(np.float32) + 7
    assert Sampling().choose(logits, rng) == 1
    assert np.allclose(Sampling(1.0).probabilities(logits), p)
    assert np.allclose(Sampling(0.5).probabilities(logits), p**2 / (p**2).sum())
    assert np.allclose(Sampling(1.0, top_k=2).probabilities(logits), [0, 4 / 7, 0, 3 / 7, 0])
    assert np.flatnonzero(Sampling(1.0, top_p=0.65).probabilities(logits)).tolist() == [1, 3]
    assert np.flatnonzero(Sampling(1.0, top_p=0.75).probabilities(logits)).tolist() == [1, 3, 4]
    assert np.flatnonzero(Sampling(1.0, top_p=1e-9).probabilities(logits)).tolist() == [1]
    assert np.count_nonzero(Sampling(1.0, 99, 0.9999999).probabilities(logits)) == 5
    assert np.isfinite(Sampling(1e-3).probabilities(logits * 1e4)).all()
    drawn = [Sampling(1.0, top_k=3).choose(logits, rng) for _ in range(2000)]
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    assert np.allclose(shares, Sampling(1.0, top_k=3).probabilities(logits), atol=0.05)


def folder(tmp_path: Path, **changes: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**SMOLLM2_135M, **changes}))
    return tmp_path


def test_the_published_sizes(tmp_path: Path) -> None:
    model = LanguageModel.read(folder(tmp_path))
    assert model.sizes == SmolLm2Config() and model.context == 8192
    assert (model.begin, model.ends) == (0, {0})
    newer = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": None}
    assert LanguageModel.read(folder(tmp_path, **newer)).sizes.theta == 7.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mistral"}, "'model_type' is 'mistral', only 'llama' is supported"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "positions of the kind 'llama3'"),
        ({"hidden_size": "wide"}, "'hidden_size' must be a number above 0, not 'wide'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a number above 0, not 0"),
        ({"num_key_value_heads": 2}, "9 heads cannot share 2"),
        ({"head_dim": 7}, "'head_dim' must be even, not 7"),
        ({"rms_norm_eps": None}, "'rms_norm_eps' must be a number above 0, not None"),
    ],
)
def test_models_of_another_kind(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        LanguageModel.read(folder(tmp_path, **changes))
    assert named in str(caught.value) and str(tmp_path) in str(caught.value)


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"name a folder of Hugging Face with config\.json"):
        LanguageModel.read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is no JSON"):
        LanguageModel.read(tmp_path)
    model = LanguageModel.read(folder(tmp_path))
    with pytest.raises(CheckpointError, match=r"cannot read .*model\.safetensors"):
        model.parameters()


def test_programs_of_one_text_share_parameters_and_cache() -> None:
    sizes = SmolLm2Config(vocabulary=37, hidden=24, layers=2, heads=6, kv_heads=2, head=4, mlp=20)
    plans = [compile_graph(continuation(sizes, tokens, 70).graph) for tokens in (1, 5)]
    for plan in plans:
        check_plan(plan)
    for kind in ("parameter", "state"):
        mine, other = ([p.placements[p.tensors[n]] for n in p.names(kind)] for p in plans)
        assert [place.offset for place in mine] == [place.offset for place in other]
    assert len(plans[0].names("state")) == 4


def test_what_is_changed_in_place_has_no_other_reader() -> None:
    def build(graph: Graph, *, twice: bool = False, computed: bool = False) -> None:
        cache, at = graph.state("cache", (4, 2)), graph.input("at", (1,), "u32")
        changed = ops.square(cache) if computed else cache
        y = ops.write_rows(changed, graph.input("x", (1, 2)), at)
        graph.output("y", ops.add(y, cache) if twice else ops.affine(y, 2.0, 0.0))

    good = Graph()
    build(good)
    check_plan(compile_graph(good))
    for options, named in (
        ({"twice": True}, "changes 'cache', which something else reads"),
        ({"computed": True}, "which is neither input nor state"),
    ):
        graph = Graph()
        build(graph, **options)
        with pytest.raises(GraphError, match=named):
            compile_graph(graph)
