"""Greedy output of the bundled target equals transformers' ``generate`` on it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.config import DrafterConfig, EngineConfig, EngineTable, TargetConfig
from engine.core import EngineCore
from engine.messages import SamplingParams, Submit

ROOT = Path(__file__).parents[2]
TARGET = str(ROOT / "demo/target")
MAX_TOKENS = 48


def test_greedy_output_equals_generate(demo_prompts: list[dict[str, Any]]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts: list[list[int]] = [
        tokenizer.apply_chat_template(
            prompt["messages"], add_generation_prompt=True, return_dict=False
        )
        for prompt in demo_prompts[::9]
    ]
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=MAX_TOKENS)
        expected.append(out[0, len(prompt) :].tolist())
    assert _generate(prompts) == expected


def _generate(prompts: list[list[int]]) -> list[list[int]]:
    core = EngineCore(
        EngineConfig(
            target=TargetConfig(model=TARGET),
            drafter=DrafterConfig(model=str(ROOT / "demo/drafter")),
            engine=EngineTable(
                device="cpu", max_num_seqs=8, max_num_batched_tokens=512, kv_cache_gib=0.2
            ),
        )
    )
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    tokens: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        submit = Submit(request_id=str(i), prompt_token_ids=prompt, params=params)
        assert core.submit(submit) is None
    while core.has_work:
        for output in core.step():
            tokens[int(output.request_id)] += output.token_ids
    return tokens
