"""Triton must know before its first import, by whomever, that it is to interpret kernels."""

import os
from importlib.util import find_spec
from typing import Any

import torch


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


if not torch.cuda.is_available() and find_spec("triton"):
    os.environ["TRITON_INTERPRET"] = "1"
    _let_interpreter_read_scalars()
