"""Tiny random checkpoints, written once, and one thread: the shapes are too small for more."""

from pathlib import Path

import pytest
import torch

from tests.engine.checkpoints import write_drafter, write_target

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def drafter_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))
