"""Without a GPU the kernels run in Triton's interpreter (see tests/conftest.py)."""

import os
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


def _let_interpreter_read_scalars() -> None:
    """Triton 3.6 keeps scalars as arrays of shape [1]; from numpy 2.4 on, int() refuses these.

    Without this, ``range`` with bounds known only in the kernel fails.
    """
    from triton.runtime import interpreter  # noqa: PLC0415

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


if os.environ.get("TRITON_INTERPRET") == "1":
    _let_interpreter_read_scalars()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU, or the CPU under the interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("TRITON_INTERPRET=1 is not set: tests/conftest.py sets it")
    return torch.device("cpu")
