"""The engine over our Triton attention: on a GPU natively, else under Triton's interpreter."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention.backend import select_backend
from engine.config import ConfigError
from tests.engine.checkpoints import make_engine, write_drafter
from tests.engine.probe import Probe, Run, drive, submit


def run(target: Path, drafter: Path, *, triton: bool) -> tuple[Run, Probe]:
    core = make_engine(target, drafter, max_model_len=64, max_num_batched_tokens=32)
    if triton:
        from engine.attention import triton_backend  # noqa: PLC0415

        runner = core.runner
        runner.target = replace(runner.target, attend=triton_backend.attend)
        assert runner.drafter is not None
        runner.drafter = replace(runner.drafter, attend=triton_backend.attend)
    probe = Probe(core)
    prompts = [list(range(1, 40)), [5, 6, 7], [9] * 17]
    submits = [submit(str(i), prompt, max_tokens=6) for i, prompt in enumerate(prompts)]
    return drive(core, submits), probe


def test_logits_equal_the_reference(target_dir: Path, tmp_path: Path) -> None:
    """Prefill chunks, draft blocks and verification, in a batch of different lengths."""
    pytest.importorskip("triton")
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    window = {"layer_types": kinds, "sliding_window": 8, "use_sliding_window": True}
    drafter_dir = write_drafter(tmp_path, head_dim=16, **window)
    expected, reference = run(target_dir, drafter_dir, triton=False)
    found, probe = run(target_dir, drafter_dir, triton=True)
    assert found.tokens == expected.tokens
    for request_id, rows in reference.logits.items():
        for position, row in rows.items():
            torch.testing.assert_close(
                probe.logits[request_id][position], row, atol=1e-4, rtol=1e-4
            )
    for ours, theirs in zip(probe.drafts, reference.drafts, strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-4, rtol=1e-4)


def test_refused_without_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"attention_backend .* needs a GPU"):
        select_backend("engine.attention_backend", "triton", torch.device("cpu"))
