"""Registers that a compiled kernel spills to memory, read from its machine code."""

import re
import subprocess
import tempfile

# Triton 3.6 spills nothing; later versions some registers of a few kernels. More would be felt.
MAX_STACK_BYTES = 256


def stack_bytes(cubin: bytes) -> int:
    """Bytes of stack of a kernel; Triton brings the tool that tells."""
    from triton import knobs  # noqa: PLC0415

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"STACK:(\d+)", done.stdout + done.stderr)
    assert found, done.stdout
    return int(found[1])
