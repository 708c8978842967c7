"""Known parameters that this server does not implement: refused by name, never silently ignored.

Each is listed with the values that ask for nothing special; those, and null, pass. Parameters that
are in no list at all are tolerated: clients send private ones.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

# OpenAI's own.
_OPENAI: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

# Extensions of other servers of the same interface.
_EXTENSIONS: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "custom_logit_processor": (),
    "do_sample": (True,),
    "documents": ([],),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (0, -1),
    "dry_sequence_breakers": ([],),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ebnf": (),
    "grammar": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_mode": (0,),
    "mirostat_tau": (5,),
    "mm_processor_kwargs": (),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "prompt_logprobs": (),
    "regex": (),
    "repeat_last_n": (64,),
    "repeat_penalty": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([],),
    "structural_tag": (),
    "structured_outputs": (),
    "tfs": (1,),
    "tfs_z": (1,),
    "thinking_token_budget": (),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
}

UNSUPPORTED = _OPENAI | _EXTENSIONS


def refuse_unsupported(request: Mapping[str, Any]) -> None:
    """Raise the validation error of the first unsupported parameter that asks for something."""
    for name, value in request.items():
        if value is None or name not in UNSUPPORTED or value in UNSUPPORTED[name]:
            continue
        raise PydanticCustomError(
            "unsupported_parameter",
            "The parameter {param} is not supported by this server{but}.",
            {"param": name, "but": _but(UNSUPPORTED[name])},
        )


def _but(neutral: tuple[Any, ...]) -> str:
    return f" (only {' or '.join(map(json.dumps, neutral))})" if neutral else ""
