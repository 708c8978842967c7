"""Filling a model with weights: streamed from safetensors shards, or random ("dummy")."""

import logging

import torch
from torch import Tensor, nn

from engine.checkpoint import Checkpoint
from engine.config import ConfigError
from engine.layers.linear import MergedLinear

log = logging.getLogger(__name__)


def materialize(module: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Give a module that was built on the meta device real, uninitialised memory."""
    module.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    if device.type == "cpu":
        _transpose_linear_weights(module)


def _transpose_linear_weights(module: nn.Module) -> None:
    """Lay linear weights out input-major, under the same shape.

    For the few rows of a draft block the CPU's matrix product takes up to half as long so.
    """
    for child in module.modules():
        if isinstance(child, MergedLinear | nn.Linear):
            child.weight.data = child.weight.new_empty(child.weight.shape[::-1]).t()


def checkpoint_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor that a checkpoint must hold, by its name there, as views of the parameters."""
    tensors: dict[str, Tensor] = {}
    for path, child in module.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            if isinstance(child, MergedLinear):
                parent = path.rpartition(".")[0]
                for part in child.parts:
                    tensors[f"{parent}.{part}.{name}"] = child.part(parameter, part)
            else:
                tensors[f"{path}.{name}"] = parameter
    return tensors


def load_weights(module: nn.Module, checkpoint: Checkpoint, ignored: set[str]) -> None:
    """Copy a checkpoint's tensors into ``module``; those named in ``ignored`` may be there too.

    Raises ConfigError that names the first tensor that is missing, left over or of another shape.
    """
    wanted = checkpoint_tensors(module)
    leftover: list[str] = []
    for number, shard in enumerate(checkpoint.shards, start=1):
        log.info("loading %s (%d of %d)", shard, number, len(checkpoint.shards))
        for name, tensor in checkpoint.tensors(shard):
            if name in wanted:
                _copy(wanted.pop(name), tensor, name, checkpoint)
            elif name not in ignored:
                leftover.append(name)
    _refuse(leftover, "has tensors that the model does not know", checkpoint)
    _refuse(list(wanted), "lacks tensors that the model needs", checkpoint)


def _copy(parameter: Tensor, tensor: Tensor, name: str, checkpoint: Checkpoint) -> None:
    if parameter.shape != tensor.shape:
        raise ConfigError(
            f"{checkpoint.directory}: {name} has shape {list(tensor.shape)}, config.json asks for "
            f"{list(parameter.shape)}"
        )
    parameter.copy_(tensor)


def _refuse(names: list[str], problem: str, checkpoint: Checkpoint) -> None:
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise ConfigError(f"{checkpoint.directory} {problem}: {shown}")


def fill_dummy(module: nn.Module) -> None:
    """Random weights of a plausible size, the same in every run; norms are one."""
    generator: dict[torch.device, torch.Generator] = {}
    for parameter in module.parameters():
        device = parameter.device
        random = generator.setdefault(device, torch.Generator(device).manual_seed(0))
        if parameter.ndim == 1:
            parameter.fill_(1)
        else:
            parameter.normal_(std=0.02, generator=random)
