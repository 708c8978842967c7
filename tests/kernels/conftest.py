"""Without a GPU the kernels run in Triton's interpreter (see tests/conftest.py)."""

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU, or the CPU under the interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("TRITON_INTERPRET=1 is not set: tests/conftest.py sets it")
    return torch.device("cpu")
