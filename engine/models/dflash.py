"""The DFlash drafter (arXiv 2602.06036) in z-lab's checkpoint format.

The drafter reads the target's hidden features as its context: ``fc`` and ``hidden_norm`` fuse the
features of one committed token into one vector, and each layer's key and value projections of that
vector are the token's entry in the layer's cache. The context itself never passes through the
layers. A block of ``[bonus, K masks]`` does, in one pass, and row k predicts the token at its own
position. Embedding and output head are the target's.
"""

from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from engine.checkpoint import Checkpoint
from engine.config import ConfigError
from engine.layers.norm import RMSNorm
from engine.models.config import DecoderJson
from engine.models.decoder import DecoderConfig, DecoderLayer, ForwardContext

# Keys of published drafter configs that change nothing in a forward pass. "final_logit_softcapping"
# is monotone, so the argmax that drafting takes is the same with it; the embedding and the head
# are the target's, whatever "tie_word_embeddings" says.
_WITHOUT_EFFECT = {
    "architectures", "attention_dropout", "auto_map", "block_size", "bos_token_id", "dflash_config",
    "dtype", "eos_token_id", "final_logit_softcapping", "initializer_range", "is_causal",
    "max_window_layers", "model_type", "num_target_layers", "pad_token_id", "torch_dtype",
    "transformers_version", "use_cache", "_name_or_path",
}  # fmt: skip


class DFlashFields(BaseModel):
    """The ``dflash_config`` table. Any key that is not here would change the arithmetic."""

    model_config = ConfigDict(extra="forbid")

    mask_token_id: int
    target_layer_ids: Annotated[list[int], Field(min_length=1)]
    block_size: int | None = None
    causal: bool | None = None


class DFlashJson(DecoderJson):
    """A drafter's config.json."""

    dflash_config: DFlashFields
    block_size: int | None = None
    num_target_layers: int
    is_causal: bool | None = None

    def refuse_unknown(self, checkpoint: Checkpoint) -> None:
        """An unknown key that is set may change the arithmetic: name it rather than guess."""
        for key, value in (self.model_extra or {}).items():
            if key not in _WITHOUT_EFFECT and value not in (None, False):
                raise ConfigError(
                    f"{checkpoint.directory}/config.json: {key} = {value!r} is not implemented "
                    "for drafters; use another drafter.model"
                )

    def block(self, checkpoint: Checkpoint) -> int:
        """block_size, from either of its two places."""
        places = {self.block_size, self.dflash_config.block_size} - {None}
        size = places.pop() if len(places) == 1 else None
        if size is None or size < 2:
            raise ConfigError(
                f"{checkpoint.directory}/config.json: block_size = {self.block_size} and "
                f"dflash_config.block_size = {self.dflash_config.block_size}; a drafter needs one "
                "value of at least 2"
            )
        return size

    def causal_layers(self, checkpoint: Checkpoint) -> tuple[bool, ...]:
        """Whether each layer hides the later tokens of a block.

        Without an explicit setting, full layers see the whole block and sliding layers are causal,
        as vLLM and SGLang run these checkpoints.
        """
        flag = self.is_causal if self.dflash_config.causal is None else self.dflash_config.causal
        windows = self.windows(checkpoint.directory / "config.json")
        return tuple(window is not None if flag is None else flag for window in windows)


class DFlashDrafter(nn.Module):
    """Proposes the K tokens after the bonus in one forward pass."""

    def __init__(self, config: DecoderConfig, fields: DFlashJson, block_size: int) -> None:
        super().__init__()
        self.config = config
        self.block_size = block_size
        self.num_target_layers = fields.num_target_layers
        self.mask_token_id = fields.dflash_config.mask_token_id
        self.target_layer_ids = tuple(fields.dflash_config.target_layer_ids)
        feature_size = len(self.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        layers = [DecoderLayer(config, i) for i in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self._attentions = [layer.self_attn for layer in layers]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, dtype: torch.dtype) -> "DFlashDrafter":
        """The drafter of config.json, without weights (build it on the meta device)."""
        _refuse_other_formats(checkpoint.config, checkpoint)
        fields = DFlashJson.read(checkpoint)
        fields.refuse_unknown(checkpoint)
        config = fields.decoder(checkpoint, dtype, fields.causal_layers(checkpoint))
        return cls(config, fields, fields.block(checkpoint))

    def ignored_weights(self) -> set[str]:
        """Tensors that checkpoints may hold although nothing needs them: none."""
        return set()

    def write_context(self, features: Tensor, context: ForwardContext) -> None:
        """Store committed tokens as context in every layer's cache.

        ``features [T, len(target_layer_ids) * hidden]`` are the target's at the T tokens that
        ``context`` describes. Only its positions, slots, cos and sin are used.
        """
        fused = self.hidden_norm(self.fc(features))
        for attention in self._attentions:
            attention.write_context(fused, context)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Hidden states ``[T, hidden]`` of draft blocks embedded as ``x [T, hidden]``."""
        for layer in self.layers:
            x = layer(x, context)
        return self.norm(x)


def _refuse_other_formats(config: dict[str, Any], checkpoint: Checkpoint) -> None:
    architectures = config.get("architectures")
    if architectures != ["DFlashDraftModel"]:
        raise ConfigError(
            f"drafter.model = {str(checkpoint.directory)!r} has architectures = {architectures}; "
            "a DFlash drafter has ['DFlashDraftModel']"
        )


def check_pair(target: DecoderConfig, drafter: DFlashDrafter) -> None:
    """Refuse a drafter that was not made for this target. Raises ConfigError with both values."""
    draft = drafter.config
    ids = drafter.target_layer_ids
    checks: list[tuple[str, object, str, object, bool]] = [
        ("hidden_size", draft.hidden_size, "hidden_size", target.hidden_size,
         draft.hidden_size == target.hidden_size),
        ("vocab_size", draft.vocab_size, "vocab_size", target.vocab_size,
         draft.vocab_size == target.vocab_size),
        ("num_target_layers", drafter.num_target_layers, "num_hidden_layers", target.num_layers,
         drafter.num_target_layers == target.num_layers),
        ("target_layer_ids", list(ids), "num_hidden_layers", target.num_layers,
         min(ids) >= 0 and max(ids) < target.num_layers),
        ("mask_token_id", drafter.mask_token_id, "vocab_size", target.vocab_size,
         0 <= drafter.mask_token_id < target.vocab_size),
    ]  # fmt: skip
    for name, value, target_name, target_value, fits in checks:
        if not fits:
            raise ConfigError(
                f"drafter.model does not fit target.model: the drafter's {name} is {value}, the "
                f"target's {target_name} is {target_value}; use the drafter made for this target"
            )


def check_context_length(draft: DecoderConfig, max_model_len: int) -> None:
    """Refuse a context that is longer than the drafter's. Raises ConfigError with both values."""
    if draft.max_position_embeddings < max_model_len:
        raise ConfigError(
            f"engine.max_model_len = {max_model_len} is more than the drafter's "
            f"max_position_embeddings = {draft.max_position_embeddings}; "
            f"set engine.max_model_len = {draft.max_position_embeddings} or less"
        )
