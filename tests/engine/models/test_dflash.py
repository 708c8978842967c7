"""The drafter, driven by the real engine, against ``plain_drafter`` on transformers' features."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import ConfigError
from engine.core import EngineCore
from engine.messages import Submit
from tests.engine.checkpoints import (
    MASK_ID,
    VOCAB,
    engine_config,
    make_engine,
    oracle,
    write_drafter,
    write_target,
)
from tests.engine.models.plain_drafter import PlainDrafter
from tests.engine.probe import DraftStep, Probe, Steering, drive, submit

DFLASH: dict[str, Any] = {"mask_token_id": MASK_ID, "target_layer_ids": [0, 2, 3]}
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW = {"use_sliding_window": True, "sliding_window": 9}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding": {"layer_types": [SLIDING] * 3, **WINDOW},
    "mixed": {"layer_types": [SLIDING, SLIDING, FULL], **WINDOW},
    "window_below_block": {
        "layer_types": [SLIDING, FULL, SLIDING], **WINDOW, "sliding_window": 3
    },
    "sliding_bidirectional": {
        "layer_types": [SLIDING, FULL, SLIDING], **WINDOW, "is_causal": False
    },
    "causal": {"dflash_config": {**DFLASH, "causal": True}},
    "yarn": {"rope_scaling": YARN},
    "yarn_legacy_name": {"rope_scaling": {**YARN, "type": "yarn"}},
    "block_size_in_table": {"block_size": None, "dflash_config": {**DFLASH, "block_size": 4}},
    "block_size_twice": {"block_size": 4, "dflash_config": {**DFLASH, "block_size": 4}},
    "taps_in_another_order": {"dflash_config": {**DFLASH, "target_layer_ids": [2, 0]}},
    "bias": {"attention_bias": True},
}  # fmt: skip


class Oracle:
    """Features of transformers' target and the plain drafter's logits for a recorded step."""

    def __init__(self, target: Path, drafter: Path) -> None:
        self.target = oracle(target)
        self.drafter = PlainDrafter(drafter)
        self.taps = self.drafter.config["dflash_config"]["target_layer_ids"]
        self._residual: list[Tensor] = []
        for layer in self.target.model.layers:
            layer.register_forward_hook(self._keep)

    def _keep(self, _layer: Any, _args: Any, output: Any) -> None:
        self._residual.append(output if isinstance(output, Tensor) else output[0])

    @torch.inference_mode()
    def logits(self, step: DraftStep) -> Tensor:
        self._residual.clear()
        self.target.model(torch.tensor([step.committed]), use_cache=False)
        features = torch.cat(
            [self._residual[i].view(len(step.committed), -1) for i in self.taps], -1
        )
        masks = [MASK_ID] * (len(step.logits) - 1)
        block = self.target.get_input_embeddings()(torch.tensor([step.bonus, *masks]))
        return self.drafter.block_logits(
            features, block, self.target.get_output_embeddings().weight
        )

    def check(self, probe: Probe, least: int = 1) -> None:
        assert len(probe.drafts) >= least
        for step in probe.drafts:
            torch.testing.assert_close(step.logits, self.logits(step), atol=1e-4, rtol=0)


def submits(count: int = 6, *, seed: int = 0, max_tokens: int = 14) -> list[Submit]:
    """Prompts of 1 to 50 tokens; every other one begins like the first."""
    random = Random(seed)

    def tokens(length: int) -> list[int]:
        return [random.randrange(VOCAB) for _ in range(length)]

    shared = tokens(20)
    lengths = [1, 8, 23, 50, 16, 31]
    return [
        submit(
            f"r{seed}-{i}", (shared if i % 2 else []) + tokens(lengths[i]), max_tokens=max_tokens
        )
        for i in range(count)
    ]


def steered(core: EngineCore, requests: list[Submit], target: Path) -> Steering:
    """Make the engine accept none, some and all drafts, towards the target's greedy output."""
    plain = drive(make_engine(target, kv_tokens=4096), requests)
    return Steering(core, plain.tokens, seed=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_block_logits_equal_the_plain_drafter(
    variant: str, target_dir: Path, tmp_path: Path
) -> None:
    write_drafter(tmp_path, **VARIANTS[variant])
    core = make_engine(target_dir, tmp_path)
    probe, requests = Probe(core), submits()
    steering = steered(core, requests, target_dir)
    drive(core, requests, stagger=1)
    Oracle(target_dir, tmp_path).check(probe, least=20)
    width = core.runner.num_draft_tokens
    assert steering.right[0] > 2
    assert steering.right[width] > 2
    assert sum(steering.right[i] for i in range(1, width)) > 1


def test_untied_head_and_sliding_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    sliding = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    write_target(target, tie_word_embeddings=False, **sliding)
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    write_drafter(drafter)
    core = make_engine(target, drafter)
    probe = Probe(core)
    drive(core, submits())
    Oracle(target, drafter).check(probe)


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_batched_tokens": 25},
        {"max_num_batched_tokens": 40, "page_size": 1},
        {"max_num_batched_tokens": 31, "page_size": 64, "num_draft_tokens": 2},
    ],
)
def test_chunked_prefill(engine: dict[str, int], target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, **VARIANTS["mixed"])
    core = make_engine(target_dir, tmp_path, **engine)
    probe, requests = Probe(core), submits()
    steered(core, requests, target_dir)
    drive(core, requests, stagger=1)
    Oracle(target_dir, tmp_path).check(probe)


def test_prefix_cache_hits(target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, **VARIANTS["mixed"])
    core = make_engine(target_dir, tmp_path)
    first = submits(max_tokens=30)
    steered(core, first, target_dir)
    run = drive(core, first)
    # The next turn reads prompt and answer from the cache.
    turns = [
        submit(f"turn{r.request_id}", r.prompt_token_ids + run.tokens[r.request_id] + [1, 2])
        for r in first
    ]
    probe = Probe(core)
    steered(core, turns, target_dir)
    again = drive(core, turns, stagger=2)
    assert all(o[0].num_cached_tokens >= 24 for o in again.outputs.values())
    Oracle(target_dir, tmp_path).check(probe)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption(prefix_caching: bool, target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, **VARIANTS["mixed"])
    core = make_engine(
        target_dir, tmp_path, kv_tokens=152, max_model_len=120, prefix_caching=prefix_caching
    )
    probe, requests = Probe(core), submits(max_tokens=40)
    steered(core, requests, target_dir)
    drive(core, requests)
    assert core.stats().num_preemptions > 0
    Oracle(target_dir, tmp_path).check(probe)


def test_up_to_the_end_of_the_context(target_dir: Path, drafter_dir: Path) -> None:
    core = make_engine(target_dir, drafter_dir, max_model_len=64)
    probe = Probe(core)
    request = submits(4)[3]  # 70 tokens
    request = submit("long", request.prompt_token_ids[:50], max_tokens=14)
    run = drive(core, [request])
    assert run.reasons["long"] == "length"
    assert len(run.tokens["long"]) == 14
    Oracle(target_dir, drafter_dir).check(probe)


def test_drafts_are_the_argmax_of_the_block_logits(target_dir: Path, drafter_dir: Path) -> None:
    core = make_engine(target_dir, drafter_dir)
    probe, blocks = Probe(core), []
    propose = core.runner._propose
    core.runner._propose = lambda *args: blocks.append(propose(*args)) or blocks[-1]  # type: ignore[assignment, func-returns-value]
    drive(core, submits(1))
    for step, block in zip(probe.drafts, blocks, strict=True):
        assert block.tolist() == [[step.bonus, *step.logits[1:].argmax(-1).tolist()]]


def test_sliding_layers_by_depth_are_causal(target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, layer_types=None, max_window_layers=1, **WINDOW)
    drafter = make_engine(target_dir, tmp_path).runner.drafter
    assert drafter is not None
    assert drafter.model.config.windows == (None, 9, 9)
    assert drafter.model.config.causal == (False, True, True)


def test_keys_without_effect_are_accepted(target_dir: Path, tmp_path: Path) -> None:
    write_drafter(
        tmp_path,
        auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        final_logit_softcapping=30.0,
        use_swa=False,
        initializer_range=0.02,
        transformers_version="4.57.1",
    )
    make_engine(target_dir, tmp_path)


UNSUPPORTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"attention_sink_bias": True}, ["attention_sink_bias", "True"]),
    ({"attention_value_scale": 0.5}, ["attention_value_scale", "0.5"]),
    ({"draft_vocab_size": 32000}, ["draft_vocab_size", "32000"]),
    ({"dflash_config": {**DFLASH, "selector": 16}}, ["dflash_config.selector", "16"]),
    ({"architectures": ["DFlash2DraftModel"]}, ["architectures", "DFlash2DraftModel"]),
    ({"architectures": ["Qwen3ForCausalLM"]}, ["architectures", "Qwen3ForCausalLM"]),
    ({"dflash_config": None}, ["dflash_config", "missing"]),
    ({"dflash_config": {"mask_token_id": 1}}, ["dflash_config.target_layer_ids", "missing"]),
    ({"dflash_config": {**DFLASH, "target_layer_ids": []}}, ["target_layer_ids", "[]"]),
    ({"block_size": 8, "dflash_config": {**DFLASH, "block_size": 4}}, ["block_size", "8", "4"]),
    ({"block_size": None}, ["block_size", "None"]),
    ({"block_size": 1}, ["block_size", "1"]),
    ({"layer_types": [SLIDING] * 3}, ["layer_types", "sliding_window"]),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_type", "llama3"]),
]
MISMATCHES: list[tuple[dict[str, Any], list[str]]] = [
    ({"hidden_size": 48}, ["hidden_size", "48", "32"]),
    ({"vocab_size": 96}, ["vocab_size", "96", "97"]),
    ({"num_target_layers": 36}, ["num_target_layers", "36", "num_hidden_layers", "4"]),
    ({"dflash_config": {**DFLASH, "target_layer_ids": [1, 4]}}, ["target_layer_ids", "[1, 4]"]),
    ({"dflash_config": {**DFLASH, "target_layer_ids": [-1, 2]}}, ["target_layer_ids", "[-1, 2]"]),
    ({"dflash_config": {**DFLASH, "mask_token_id": 97}}, ["mask_token_id", "97", "vocab_size"]),
]


def refusal(target: Path, drafter: Path, **engine: Any) -> str:
    with pytest.raises(ConfigError) as error:
        EngineCore(engine_config(target, drafter, **engine))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("fields", "words"), UNSUPPORTED + MISMATCHES)
def test_refusals_name_key_and_value(
    fields: dict[str, Any], words: list[str], target_dir: Path, tmp_path: Path
) -> None:
    write_drafter(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | fields
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = refusal(target_dir, tmp_path)
    for word in words:
        assert word in message


def test_mismatches_are_refused_before_the_drafter_is_read(
    target_dir: Path, tmp_path: Path
) -> None:
    write_drafter(tmp_path, hidden_size=48)
    (tmp_path / "model.safetensors").unlink()
    assert "hidden_size" in refusal(target_dir, tmp_path)


def test_context_length(target_dir: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path, max_position_embeddings=120)
    message = refusal(target_dir, tmp_path, max_model_len=150)
    assert "engine.max_model_len = 150" in message
    assert "120" in message
    assert make_engine(target_dir, tmp_path).runner.max_model_len == 120
    message = refusal(target_dir, tmp_path, max_model_len=161)
    assert "engine.max_model_len = 161" in message
    assert "160" in message


def test_num_draft_tokens(target_dir: Path, drafter_dir: Path) -> None:
    message = refusal(target_dir, drafter_dir, num_draft_tokens=6)
    for word in ["engine.num_draft_tokens = 6", "block_size = 6", "5"]:
        assert word in message
    with pytest.raises(ConfigError, match="num_draft_tokens = 2 needs a drafter"):
        make_engine(target_dir, num_draft_tokens=2)


@pytest.mark.parametrize(
    ("name", "problem"), [("d2t", "does not know: d2t"), ("fc.bias", "does not know: fc.bias")]
)
def test_tensors_that_would_change_the_arithmetic(
    name: str, problem: str, target_dir: Path, tmp_path: Path
) -> None:
    write_drafter(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, name: torch.zeros(3)}, tmp_path / "model.safetensors")
    assert problem in refusal(target_dir, tmp_path)
