from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from engine.config import ConfigError
from server.tokenizer import Tokenizer, load_tokenizer


def test_round_trip(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("Grüße 你好")) == "Grüße 你好"


def test_special_tokens_of_the_template_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|>") == [0, 1]


def test_figures_of_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert 258 <= tokenizer.vocab_size <= 400
    assert tokenizer.longest_token == len("<|im_start|>")


def test_truncation_and_padding_settings_are_dropped(checkpoint: Path, tmp_path: Path) -> None:
    backend = Backend.from_file(str(checkpoint / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(tmp_path).encode("<|im_end|>" * 5)) == 5
    assert len(load_tokenizer(tmp_path).encode("<|im_end|>")) == 1


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(tmp_path)
