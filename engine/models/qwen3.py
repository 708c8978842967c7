"""Qwen3 dense models (``model_type = "qwen3"``); transformers' ``models/qwen3`` is the oracle."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.checkpoint import Checkpoint
from engine.layers.norm import RMSNorm
from engine.models.config import DecoderJson
from engine.models.decoder import DecoderConfig, DecoderLayer, ForwardContext


class Qwen3Model(nn.Module):
    """Embedding, decoder layers and final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen3ForCausalLM(nn.Module):
    """A target model. ``lm_head`` is absent where the head is tied to the embedding."""

    def __init__(self, config: DecoderConfig, tied: bool) -> None:
        super().__init__()
        self.config = config
        self.model = Qwen3Model(config)
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, dtype: torch.dtype) -> "Qwen3ForCausalLM":
        """The model of config.json, without weights (build it on the meta device)."""
        fields = DecoderJson.read(checkpoint)
        return cls(fields.decoder(checkpoint, dtype), fields.tie_word_embeddings)

    def ignored_weights(self) -> set[str]:
        """Tensors that checkpoints may hold although nothing needs them."""
        return {"lm_head.weight"} if self.lm_head is None else set()

    def embed(self, token_ids: Tensor) -> Tensor:
        """``token_ids [T]`` to ``[T, hidden]``."""
        return self.model.embed_tokens(token_ids)

    def forward(
        self, token_ids: Tensor, context: ForwardContext, capture: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """The final hidden states ``[T, hidden]`` of ``token_ids [T]``, and the features.

        Features are the residual stream after each of the layers in ``capture`` (Hugging Face's
        ``hidden_states[l + 1]``), side by side: ``[T, len(capture) * hidden]``.
        """
        x = self.embed(token_ids)
        captured: dict[int, Tensor] = {}
        for index, layer in enumerate(self.model.layers):
            x = layer(x, context)
            if index in capture:
                captured[index] = x
        features = torch.cat([captured[i] for i in capture], dim=-1) if capture else None
        return self.model.norm(x), features

    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden [T, hidden]`` to ``[T, vocab]``."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight)
