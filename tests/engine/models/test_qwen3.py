"""Qwen3 through the runner and the paged cache, against transformers."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import ConfigError
from engine.core import EngineCore
from engine.messages import Submit
from tests.engine.checkpoints import (
    TARGET_LAYERS,
    VOCAB,
    YARN,
    edit_config,
    engine_config,
    make_engine,
    oracle,
    write_drafter,
    write_target,
)
from tests.engine.probe import Probe, Run, drive, submit

SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_word_embeddings": False},
    "bias": {"attention_bias": True},
    "sliding": SLIDING,
    "yarn": {"rope_parameters": YARN},
    "yarn_exact": {
        "rope_parameters": {**YARN, "truncate": False, "beta_fast": 8.0, "attention_factor": 1.3}
    },
    "multi_query": {"num_key_value_heads": 1},
    "multi_head": {"num_key_value_heads": 4},
    "shards": {"shard_size": "20KB", "tie_word_embeddings": False},
}


def prompts(seed: int = 0) -> list[list[int]]:
    """Of 1, below, at and past page borders; some share a beginning of two pages."""
    random = Random(seed)

    def tokens(count: int) -> list[int]:
        return [random.randrange(VOCAB) for _ in range(count)]

    shared = tokens(19)
    return [tokens(1), tokens(7), tokens(8), shared, shared + tokens(40), tokens(61), shared[:17]]


def submits(names: str = "r", **params: Any) -> list[Submit]:
    return [submit(f"{names}{i}", p, **params) for i, p in enumerate(prompts())]


@torch.inference_mode()
def expected(model: Any, tokens: list[int]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits and hidden_states of transformers for a whole sequence without a cache."""
    result = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return result.logits[0], tuple(h[0] for h in result.hidden_states)


def check_logits(probe: Probe, run: Run, requests: list[Submit], model: Any) -> None:
    for request in requests:
        name = request.request_id
        tokens = request.prompt_token_ids + run.tokens[name]
        logits, _ = expected(model, tokens)
        skipped = run.outputs[name][0].num_cached_tokens
        for position in range(skipped, len(tokens) - 1):
            close = probe.logits[name][position]
            torch.testing.assert_close(close, logits[position], atol=1e-4, rtol=0)
        generated = logits[len(request.prompt_token_ids) - 1 : -1].argmax(-1).tolist()
        assert run.tokens[name] == generated


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    write_target(tmp_path, **VARIANTS[variant])
    core = make_engine(tmp_path)
    probe, first = Probe(core), submits()
    run = drive(core, first, stagger=2)
    check_logits(probe, run, first, oracle(tmp_path))
    if variant == "shards":
        assert len(list(tmp_path.glob("*.safetensors"))) > 3


@pytest.mark.parametrize("budget", [16, 21, 64])
@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_chunked_prefill(budget: int, page_size: int, target_dir: Path) -> None:
    core = make_engine(
        target_dir, max_num_batched_tokens=budget, page_size=page_size, prefix_caching=False
    )
    probe, requests = Probe(core), submits()
    run = drive(core, requests, stagger=1)
    check_logits(probe, run, requests, oracle(target_dir))


def test_chunked_prefill_with_sliding_window(tmp_path: Path) -> None:
    write_target(tmp_path, **SLIDING)
    core = make_engine(tmp_path, max_num_batched_tokens=16)
    probe, requests = Probe(core), submits()
    check_logits(probe, drive(core, requests), requests, oracle(tmp_path))


def test_prefix_cache_hits_give_the_same_logits(target_dir: Path) -> None:
    core = make_engine(target_dir)
    probe = Probe(core)
    first, again = submits("first"), submits("again")
    check_logits(probe, drive(core, first), first, oracle(target_dir))
    run = drive(core, again, stagger=1)
    check_logits(probe, run, again, oracle(target_dir))
    cached = [outputs[0].num_cached_tokens for outputs in run.outputs.values()]
    assert sum(cached) > 90
    assert max(cached) >= 56
    assert core.stats().prefix_cache_hits >= sum(cached)


def test_generated_pages_are_shared_too(target_dir: Path) -> None:
    core = make_engine(target_dir)
    probe, prompt = Probe(core), prompts()[3]
    answer = drive(core, [submit("a", prompt, max_tokens=30)]).tokens["a"]
    turn = submit("b", [*prompt, *answer, 1, 2, 3])
    run = drive(core, [turn])
    assert run.outputs["b"][0].num_cached_tokens > len(prompt)
    check_logits(probe, run, [turn], oracle(target_dir))


def test_other_salts_share_nothing(target_dir: Path) -> None:
    core = make_engine(target_dir)
    prompt = prompts()[4]
    drive(core, [submit("a", prompt)])
    salted = Submit(
        request_id="b",
        prompt_token_ids=prompt,
        params=submit("x", prompt).params,
        cache_salt="other",
    )
    assert drive(core, [salted]).outputs["b"][0].num_cached_tokens == 0


def test_features_are_the_residual_stream_after_the_layer(target_dir: Path, tmp_path: Path) -> None:
    layers = list(range(TARGET_LAYERS))
    write_drafter(tmp_path, dflash_config={"mask_token_id": 1, "target_layer_ids": layers})
    core = make_engine(target_dir, tmp_path, max_num_batched_tokens=32)
    probe, requests = Probe(core), submits()
    run = drive(core, requests)
    model = oracle(target_dir)
    last: list[Tensor] = []
    # transformers' last hidden state is behind the final norm; the residual stream is before it.
    model.model.layers[-1].register_forward_hook(lambda _m, _a, output: last.append(output[0]))
    name, prompt = requests[4].request_id, requests[4].prompt_token_ids
    tokens = prompt + run.tokens[name]
    _, states = expected(model, tokens)
    states = (*states[:-1], last[0].view_as(states[-1]))
    positions = range(run.outputs[name][0].num_cached_tokens, len(tokens) - 1)
    features = torch.stack([probe.features[name][p] for p in positions])
    for layer, feature in zip(layers, features.chunk(len(layers), -1), strict=True):
        here = states[layer + 1][positions.start : positions.stop]
        torch.testing.assert_close(feature, here, atol=1e-4, rtol=1e-5)
        before = states[layer][positions.start : positions.stop]
        assert (feature - before).abs().max() > 0.1, "a shift by one layer would go unnoticed"


def test_window_layers_without_layer_types(tmp_path: Path) -> None:
    write_target(tmp_path, **SLIDING)
    edit_config(tmp_path, layer_types=None)
    windows = make_engine(tmp_path).runner.target.model.config.windows
    assert windows == (None, None, 7, 7)


def test_rope_theta_of_older_configs(tmp_path: Path) -> None:
    write_target(tmp_path)
    yarn = {key: value for key, value in YARN.items() if key != "rope_theta"}
    edit_config(tmp_path, rope_parameters=None, rope_theta=300.0, rope_scaling=yarn)
    core = make_engine(tmp_path)
    probe, requests = Probe(core), submits()
    check_logits(probe, drive(core, requests), requests, oracle(tmp_path))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "llama"}, ["model_type", "llama", "qwen3"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["rope_type", "dynamic"]),
        ({"rope_parameters": {"rope_type": "yarn"}}, ["yarn", "original_max_position_embeddings"]),
        ({"rope_parameters": {"mscale": 0.7}}, ["rope_parameters.mscale", "0.7"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "1", "num_hidden_layers", "4"]),
        ({"layer_types": ["linear_attention"] * 4}, ["layer_types", "linear_attention"]),
        ({"layer_types": ["sliding_attention"] * 4}, ["use_sliding_window", "sliding_window"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
        ({"hidden_size": None}, ["hidden_size", "missing"]),
        ({"head_dim": "wide"}, ["head_dim", "wide"]),
    ],
)
def test_refusals_name_key_and_value(
    fields: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, **fields)
    with pytest.raises(ConfigError) as error:
        EngineCore(engine_config(tmp_path, kv_cache_gib=0.01))
    for word in [str(tmp_path), *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
