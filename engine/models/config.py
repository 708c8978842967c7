"""Reading config.json into a DecoderConfig: every field checked, nothing silently dropped."""

from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from engine.checkpoint import Checkpoint
from engine.config import ConfigError
from engine.layers.rope import RopeParameters, YarnScaling
from engine.models.decoder import DecoderConfig


class RopeJson(BaseModel):
    """``rope_scaling`` or ``rope_parameters``; any other key would change the arithmetic."""

    model_config = ConfigDict(extra="forbid")

    rope_type: str = "default"
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class DecoderJson(BaseModel):
    """The fields of a Qwen3-like config.json that the arithmetic depends on."""

    model_config = ConfigDict(extra="allow")

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    rms_norm_eps: float
    hidden_act: str = "silu"
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_scaling: RopeJson | None = None
    rope_parameters: RopeJson | None = None
    use_sliding_window: bool | None = None
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Self:
        """config.json, checked. Raises ConfigError that names the key and the value."""
        path = checkpoint.directory / "config.json"
        try:
            fields = cls.model_validate(checkpoint.config)
        except ValidationError as error:
            raise ConfigError(f"{path}: {_first_problem(error)}") from None
        fields._refuse("hidden_act", fields.hidden_act, fields.hidden_act == "silu", path)
        grouped = fields.num_attention_heads % fields.num_key_value_heads == 0
        fields._refuse("num_key_value_heads", fields.num_key_value_heads, grouped, path)
        quantized = fields.quantization_config is not None
        fields._refuse("quantization_config", fields.quantization_config, not quantized, path)
        return fields

    def _refuse(self, key: str, value: object, supported: bool, path: Path) -> None:
        if not supported:
            raise ConfigError(
                f"{path}: {key} = {value!r} is not implemented; use another checkpoint"
            )

    def rope(self, path: Path) -> RopeParameters:
        """The RoPE variant, from either of the two places where configs keep it."""
        # Where both are there, rope_scaling counts, as in transformers.
        rope = self.rope_scaling or self.rope_parameters or RopeJson()
        theta = rope.rope_theta or self.rope_theta or 10000.0
        kind = rope.type or rope.rope_type
        self._refuse("rope_type", kind, kind in ("default", "yarn"), path)
        return RopeParameters(theta, self._yarn(rope, path) if kind == "yarn" else None)

    def _yarn(self, rope: RopeJson, path: Path) -> YarnScaling:
        original = rope.original_max_position_embeddings
        if rope.factor is None or original is None:
            raise ConfigError(
                f"{path}: rope_type = 'yarn' needs factor and original_max_position_embeddings"
            )
        return YarnScaling(
            factor=rope.factor,
            original_max_position_embeddings=original,
            # Zero and null mean the default, as in transformers.
            beta_fast=rope.beta_fast or 32.0,
            beta_slow=rope.beta_slow or 1.0,
            attention_factor=rope.attention_factor,
            truncate=rope.truncate,
        )

    def windows(self, path: Path) -> tuple[int | None, ...]:
        """Each layer's sliding window, None for full attention."""
        types = self.layer_types or self._layer_types_by_depth()
        if len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"{path}: layer_types has {len(types)} entries, num_hidden_layers is "
                f"{self.num_hidden_layers}"
            )
        for kind in types:
            known = kind in ("full_attention", "sliding_attention")
            self._refuse("layer_types", kind, known, path)
        if "sliding_attention" in types and not self._slides:
            raise ConfigError(
                f"{path}: layer_types has sliding_attention, but use_sliding_window = "
                f"{self.use_sliding_window} and sliding_window = {self.sliding_window}"
            )
        return tuple(self.sliding_window if t == "sliding_attention" else None for t in types)

    @property
    def _slides(self) -> bool:
        return self.use_sliding_window is not False and self.sliding_window is not None

    def _layer_types_by_depth(self) -> list[str]:
        """The rule of configs without ``layer_types``: the upper layers slide."""
        first = self.num_hidden_layers
        if self.use_sliding_window and self.sliding_window is not None:
            first = self.max_window_layers
        kinds = "full_attention", "sliding_attention"
        return [kinds[layer >= first] for layer in range(self.num_hidden_layers)]

    def decoder(
        self, checkpoint: Checkpoint, dtype: torch.dtype, causal: tuple[bool, ...] | None = None
    ) -> DecoderConfig:
        """The decoder's shape; ``causal`` per layer, by default everywhere."""
        path = checkpoint.directory / "config.json"
        return DecoderConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            rms_norm_eps=self.rms_norm_eps,
            attention_bias=self.attention_bias,
            rope=self.rope(path),
            windows=self.windows(path),
            causal=causal or (True,) * self.num_hidden_layers,
            dtype=dtype,
        )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{key} is missing"
    return f"{key} = {problem['input']!r} is not supported: {problem['msg'].lower()}"
