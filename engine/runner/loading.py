"""From configuration to models in memory."""

from typing import TypeVar

import torch

from engine.checkpoint import DTYPES, Checkpoint
from engine.config import CheckpointConfig, ConfigError, EngineConfig
from engine.models.dflash import DFlashDrafter, check_pair
from engine.models.registry import TargetModel, build_target
from engine.weights import fill_dummy, load_weights, materialize

M = TypeVar("M", TargetModel, DFlashDrafter)


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            'engine.device = "cuda", but torch sees no GPU; set engine.device = "cpu"'
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(
    config: CheckpointConfig, checkpoint: Checkpoint, device: torch.device
) -> torch.dtype:
    """``auto`` is float32 on the CPU, where it is both exact and fastest."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.float32 if device.type == "cpu" else checkpoint.dtype


def load_target(config: EngineConfig, device: torch.device) -> TargetModel:
    """The target with its weights."""
    checkpoint = Checkpoint(config.target.model)
    dtype = choose_dtype(config.target, checkpoint, device)
    with torch.device("meta"):
        model = build_target(checkpoint, dtype)
    return _fill(model, config.target, checkpoint, dtype, device)


def load_drafter(
    config: EngineConfig, target: TargetModel, device: torch.device
) -> DFlashDrafter | None:
    """The drafter with its weights, in the target's type; None without a ``[drafter]`` table."""
    if config.drafter is None:
        return None
    checkpoint = Checkpoint(config.drafter.model)
    dtype = choose_dtype(config.drafter, checkpoint, device)
    if dtype != target.config.dtype:
        raise ConfigError(
            f"drafter.dtype is {dtype}, the target's {target.config.dtype}: they share embedding "
            "and head; set drafter.dtype to the target's"
        )
    with torch.device("meta"):
        model = DFlashDrafter.from_checkpoint(checkpoint, dtype)
    check_pair(target.config, model)
    return _fill(model, config.drafter, checkpoint, dtype, device)


def _fill(
    model: M,
    config: CheckpointConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
) -> M:
    materialize(model, dtype, device)
    if config.load_format == "dummy":
        fill_dummy(model)
    else:
        load_weights(model, checkpoint, model.ignored_weights())
    return model
