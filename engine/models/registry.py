"""Target models by ``model_type``. One file each."""

import torch

from engine.checkpoint import Checkpoint
from engine.config import ConfigError
from engine.models.qwen3 import Qwen3ForCausalLM

TargetModel = Qwen3ForCausalLM

TARGETS: dict[str, type[TargetModel]] = {"qwen3": Qwen3ForCausalLM}


def build_target(checkpoint: Checkpoint, dtype: torch.dtype) -> TargetModel:
    """The target model of a checkpoint, without weights. Raises ConfigError by model_type."""
    kind = checkpoint.config.get("model_type")
    if kind not in TARGETS:
        raise ConfigError(
            f"target.model = {str(checkpoint.directory)!r} has model_type = {kind!r}; "
            f"supported: {', '.join(TARGETS)}"
        )
    return TARGETS[kind].from_checkpoint(checkpoint, dtype)
