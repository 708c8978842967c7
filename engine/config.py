"""Configuration of the engine: the ``[target]``, ``[drafter]`` and ``[engine]`` tables.

Frozen, resolved once, unknown keys refused. Key names follow vLLM's where the meaning is the same.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DType = Literal["auto", "float32", "bfloat16", "float16"]


class ConfigError(Exception):
    """A configuration that cannot work: one line that names the key, the value and the remedy."""


class Table(BaseModel):
    """A TOML table: immutable, typed strictly, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CheckpointConfig(Table):
    """Where a checkpoint comes from and how its weights are held."""

    model: str = Field(description="directory with a checkpoint, or a Hugging Face hub id")
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: DType = Field(
        "auto",
        description="type of weights and activations; auto: float32 on the CPU, else as stored",
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="auto: safetensors; dummy: random weights in the checkpoint's shapes"
    )


class TargetConfig(CheckpointConfig):
    """``[target]``: the model that decides every token."""

    served_name: str | None = Field(
        None,
        min_length=1,
        description="model name in the API; default: the last part of target.model",
    )


class DrafterConfig(CheckpointConfig):
    """``[drafter]``: the DFlash drafter. Leave the table out to decode plainly."""


class EngineTable(Table):
    """``[engine]``: device, limits and memory."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto: cuda where there is a GPU, else cpu"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="requests that run at once")
    max_model_len: int | None = Field(
        None,
        ge=16,
        description="longest prompt plus output, in tokens; default: what target and drafter allow",
    )
    max_num_batched_tokens: int = Field(
        8192, ge=16, description="tokens that one engine step may compute: draft blocks and prompts"
    )
    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="share of GPU memory to use, where kv_cache_gib is not set"
    )
    kv_cache_gib: float | None = Field(
        None, gt=0, description="memory for keys and values, in GiB; default on the CPU: 1"
    )
    page_size: int = Field(64, ge=1, le=1024, description="tokens in one page of the KV cache")
    prefix_caching: bool = Field(True, description="reuse the KV pages of equal prompt beginnings")
    attention_backend: Literal["auto", "torch", "triton"] = Field(
        "auto",
        description="attention of the target: triton is ours for GPUs, torch the slow reference",
    )
    draft_attention_backend: Literal["auto", "torch", "triton"] = Field(
        "auto", description="attention of the drafter, likewise"
    )
    num_draft_tokens: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="drafts that a step proposes; auto: as many as pay at the moment, up to the"
        " drafter's block_size - 1",
    )
    synthetic_acceptance_rates: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(
        None,
        description="accept draft k + 1 of a block with this probability, whatever the target says;"
        " one rate per draft, none above the one before; for dummy weights only",
    )


class EngineConfig(Table):
    """Everything that the worker process needs to know."""

    target: TargetConfig
    drafter: DrafterConfig | None = None
    engine: EngineTable = EngineTable()
