"""Every launch of the tables compiles for Hopper, fits its shared memory and hardly spills.

No GPU is needed: Triton brings ptxas. It runs in a process of its own, for this one interprets.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.stack_size import MAX_STACK_BYTES, stack_bytes

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = 227 * 1024
# (head_dim, query heads that share a kv head, kv heads)
SHAPES = [(64, 8, 8), (128, 4, 8), (128, 8, 4), (256, 2, 8), (512, 8, 2)]


def test_tables_fit_hopper() -> None:
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.test_paged_attention_compiles"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    launches = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(launches) > 15
    assert [x for x in launches if x["shared"] > SHARED_MEMORY] == []
    assert [x for x in launches if x["stack_bytes"] > MAX_STACK_BYTES] == []


def compile_tables() -> Iterator[dict[str, Any]]:
    """Compile each launch; yield its shared memory and stack (spilled registers)."""
    from kernels.paged_attention.plan import launch_settings  # noqa: PLC0415

    seen = set()
    for head_dim, group, kv_heads in SHAPES:
        for new in (1, 8, 16, 2048):
            settings = launch_settings(head_dim, new * group, group, 2)
            if (head_dim, group, settings) in seen:
                continue
            seen.add((head_dim, group, settings))
            yield {"head_dim": head_dim, "group": group, "settings": str(settings)} | built(
                head_dim, group, kv_heads, settings
            )


def built(head_dim: int, group: int, kv_heads: int, settings: Any) -> dict[str, int]:
    """Causal, windowed, pages of 64, bf16; split where the launch would usually be."""
    import triton  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    from kernels.paged_attention.triton import _attend_kernel  # noqa: PLC0415

    constants = {
        "HEAD_DIM": head_dim, "KV_HEADS": kv_heads, "GROUP": group, "PAGE_SIZE": 64,
        "BLOCK_M": settings.block_m, "BLOCK_N": settings.block_n, "CAUSAL": True,
        "HAS_WINDOW": True, "HAS_SOFTCAP": False, "HAS_SINKS": False,
        "SPLIT": not settings.staged_masks, "STAGED": settings.staged_masks,
        "PRECISION": "tf32", "DEPENDENT": settings.dependent_launch,
    }  # fmt: skip
    names = _attend_kernel.arg_names
    aligned = [n for n in names if n.endswith("_ptr") or n.startswith("stride")]
    aligned.remove("stride_table")
    source = ASTSource(
        fn=_attend_kernel,
        signature={name: _type_of(name, constants) for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": settings.num_warps, "num_stages": settings.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return {"shared": kernel.metadata.shared, "stack_bytes": stack_bytes(kernel.asm["cubin"])}


def _type_of(name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in ("inner", "outer"):
        return "fp32"
    if not name.endswith("_ptr"):
        return "i32"
    if name in ("table_ptr", "kv_lens_ptr", "query_start_ptr"):
        return "*i32"
    return "*fp32" if name in ("partial_ptr", "log_sum_ptr") else "*bf16"


if __name__ == "__main__":
    for launch in compile_tables():
        print(json.dumps(launch))
