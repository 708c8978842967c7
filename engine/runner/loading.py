"""From configuration to models in memory."""

import torch

from engine.checkpoint import DTYPES, Checkpoint
from engine.config import CheckpointConfig, ConfigError, EngineConfig
from engine.models.dflash import DFlashDrafter, check_pair
from engine.models.registry import TargetModel, build_target
from engine.weights import fill_dummy, load_weights, materialize


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


def build_models(
    config: EngineConfig, device: torch.device
) -> tuple[TargetModel, DFlashDrafter | None]:
    """Target and drafter without weights, on the meta device: enough to see whether they fit."""
    checkpoint = Checkpoint(config.target.model)
    with torch.device("meta"):
        target = build_target(checkpoint, choose_dtype(config.target, checkpoint, device))
        if config.drafter is None:
            return target, None
        checkpoint = Checkpoint(config.drafter.model)
        dtype = choose_dtype(config.drafter, checkpoint, device)
        drafter = DFlashDrafter.from_checkpoint(checkpoint, dtype)
    if dtype != target.config.dtype:
        raise ConfigError(
            f"drafter.dtype is {dtype}, the target's {target.config.dtype}: they share embedding "
            "and head; set drafter.dtype to the target's"
        )
    check_pair(target.config, drafter)
    return target, drafter


def fill(
    model: TargetModel | DFlashDrafter, config: CheckpointConfig, device: torch.device
) -> None:
    """Give a built model its memory and its weights."""
    materialize(model, model.config.dtype, device)
    if config.load_format == "dummy":
        fill_dummy(model)
    else:
        load_weights(model, Checkpoint(config.model), model.ignored_weights())
