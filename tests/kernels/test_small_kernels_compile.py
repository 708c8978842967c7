"""Every small kernel compiles for Hopper in bf16, fits its shared memory and hardly spills.

The launchers themselves run, with tensors on the CPU, in a process of its own in which Triton
believes in a GPU and stops after compiling. Triton brings ptxas.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.stack_size import MAX_STACK_BYTES, stack_bytes

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = 227 * 1024
VOCAB = 151936
KERNELS = {
    "_rms_norm_kernel", "_gated_activation_kernel", "_qk_norm_rope_kernel",
    "_write_context_kernel", "_accept_kernel", "_argmax_kernel", "_pick_kernel", "_scan_kernel",
    "_histogram_kernel", "_gather_kernel", "_draw_kernel",
}  # fmt: skip


def test_kernels_fit_hopper() -> None:
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.test_small_kernels_compile"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["name"] for kernel in compiled} == KERNELS
    assert [kernel for kernel in compiled if kernel["shared"] > SHARED_MEMORY] == []
    assert [kernel for kernel in compiled if kernel["stack_bytes"] > MAX_STACK_BYTES] == []


def only_compile(report: Callable[[Any], None]) -> None:
    """From here on, launches compile for Hopper and ``report`` instead of running."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.runtime import driver  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    class Hopper:
        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int = 0) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        del warmup
        report(launch(self, *args, grid=grid, warmup=True, **options))

    driver.set_active(Hopper())
    JITFunction.run = compile_only


def launch_all() -> None:
    """The launches of a step at the shapes of Qwen3-8B and Gemma 4."""
    launch_layers()
    launch_sampling()
    launch_accept()


def launch_layers() -> None:
    from kernels.gated_activation.triton import gelu_tanh_and_mul, silu_and_mul  # noqa: PLC0415
    from kernels.qk_norm_rope.triton import qk_norm_rope, write_context  # noqa: PLC0415
    from kernels.rms_norm.triton import add_rms_norm, rms_norm  # noqa: PLC0415

    x = bf16(16, 8192)
    rms_norm(x, x[0], 1e-6)
    add_rms_norm(x, x, x[0], 1e-6)
    silu_and_mul(x)
    gelu_tanh_and_mul(x)
    positions = int64(16)
    for heads, kv_heads, head_dim in ((32, 8, 128), (16, 8, 256), (16, 2, 512)):
        qkv = bf16(16, (heads + 2 * kv_heads) * head_dim)
        cache, table = bf16(4, 64, kv_heads, head_dim), torch.zeros(64, head_dim // 2)
        weight = bf16(head_dim)
        qk_norm_rope(
            qkv, positions, positions, table, table, cache, cache,
            q_weight=weight, k_weight=weight,
        )  # fmt: skip
    caches, table = bf16(5, 4, 64, 8, 128), torch.zeros(64, 64)
    write_context(
        bf16(16, 5, 2, 8, 128), positions, positions, table, table, caches, caches,
        k_weights=bf16(5, 128), counts=positions[:1],
    )  # fmt: skip


def launch_sampling() -> None:
    from kernels.sampling.params import SlotParams  # noqa: PLC0415
    from kernels.sampling.triton import argmax, sample  # noqa: PLC0415

    def numbers() -> torch.Tensor:
        return torch.zeros(2)

    logits, block, slots = bf16(16, VOCAB), int64(1, 16), int64(1)
    argmax(logits)
    state = SlotParams(int64(2), int64(2), numbers(), int64(2))
    sample(logits, block, slots, state)
    state = state._replace(top_k=int64(2), top_p=numbers(), min_p=numbers())
    sample(logits, block, slots, state)
    flags = torch.zeros(2, dtype=torch.bool)
    state = state._replace(
        repetition_penalty=numbers(), frequency_penalty=numbers(), presence_penalty=numbers(),
        output_counts=torch.zeros(2, VOCAB, dtype=torch.int32),
        in_prompt=torch.zeros(2, VOCAB, dtype=torch.bool),
        logit_bias=torch.zeros(2, VOCAB), has_logit_bias=flags,
        min_output=int64(2), stop_ids=int64(2, 64), softcap=30.0,
    )  # fmt: skip
    sample(logits, block, slots, state)


def launch_accept() -> None:
    from kernels.accept.state import SlotState  # noqa: PLC0415
    from kernels.accept.triton import accept  # noqa: PLC0415

    done, counts = torch.zeros(2, dtype=torch.bool), torch.zeros(2, VOCAB, dtype=torch.int32)
    slots = [int64(2) for _ in range(4)]
    state = SlotState(*slots, int64(2, 64), done, counts, int64(2))
    for rates in (None, torch.zeros(15)):
        accept(int64(4, 16), int64(4, 16), int64(4), state, synthetic_rates=rates)


def bf16(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def int64(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def report(kernel: Any) -> None:
    fields = {
        "name": kernel.metadata.name,
        "shared": kernel.metadata.shared,
        "stack_bytes": stack_bytes(kernel.asm["cubin"]),
    }
    print(json.dumps(fields))


if __name__ == "__main__":
    only_compile(report)
    launch_all()
