"""Each mistake gives one line that names the key, the value and the remedy."""

from pathlib import Path

import pytest

from engine.config import ConfigError
from server.config import Config, load_config
from server.config_help import config_help

MINIMAL = '[target]\nmodel = "demo/target"\n'


def load(tmp_path: Path, text: str = MINIMAL, *overrides: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_config(path, list(overrides))


def message(tmp_path: Path, text: str = MINIMAL, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)
    assert config.drafter is None
    assert config.served_name == "target"
    assert not hasattr(config.engine_config(), "server")


def test_served_name(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL, "target.served_name=tiny").served_name == "tiny"
    assert load(tmp_path, MINIMAL, "target.model=Qwen/Qwen3-8B").served_name == "Qwen3-8B"


def test_overrides_are_toml_values_or_strings(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        MINIMAL,
        "server.port=9000",
        "engine.prefix_caching=false",
        "engine.gpu_memory_utilization=0.5",
        "drafter.model=demo/drafter",
        'server.log_level="debug"',
        "engine.max_num_seqs=1",
        "engine.max_num_seqs=2",
    )
    assert config.server.port == 9000
    assert config.engine.prefix_caching is False
    assert config.engine.gpu_memory_utilization == 0.5
    assert config.drafter is not None
    assert config.drafter.model == "demo/drafter"
    assert config.server.log_level == "debug"
    assert config.engine.max_num_seqs == 2


@pytest.mark.parametrize(
    ("text", "override", "parts"),
    [
        (MINIMAL + "[engine]\nmax_seqs = 4", None, ["engine.max_seqs", "4", "engine.max_num_seqs"]),
        (MINIMAL, "server.prot=1", ["server.prot", "1", "server.port"]),
        (MINIMAL, "engine.port=1", ["engine.port", "server.port"]),
        (MINIMAL, "nowhere.zzzzzz=1", ["nowhere", "--help"]),
        (MINIMAL, "server.port=none", ["server.port", "'none'", "integer", "port to listen on"]),
        (MINIMAL, "server.port=70000", ["server.port", "70000", "65535"]),
        (MINIMAL, "server.port=true", ["server.port", "= true", "integer"]),
        (MINIMAL, "engine.page_size=0", ["engine.page_size", "0", "greater than or equal to 1"]),
        (MINIMAL, "engine.device=tpu", ["engine.device", "'tpu'", "'cpu'", "'cuda'"]),
        (MINIMAL, "engine.num_draft_tokens=abc", ["'auto' or a valid integer", "(num_draft_"]),
        (MINIMAL, "engine.num_draft_tokens=0", ["= 0", "'auto' or greater than or equal to 1"]),
        (
            MINIMAL,
            "engine.synthetic_acceptance_rates=[0.5, 2]",
            ["engine.synthetic_acceptance_rates = [0.5, 2]", "less than or equal to 1"],
        ),
        (MINIMAL, "engine.foo=1", ["unknown key engine.foo", "remove it"]),
        (MINIMAL, "engin.device=cpu", ["unknown key engin", "did you mean engine?"]),
        (MINIMAL, "target.served_name=''", ["target.served_name = ''", "at least 1 character"]),
        (MINIMAL, "server.port=x", ["in --set server.port=x:"]),
        (MINIMAL + "[server]\nport = 'x'", None, ["config.toml:", "(port: port to listen on"]),
        ("[engine]\n", None, ["target", "missing", "--set target.model=PATH"]),
        ("[target]\n", None, ["target.model", "missing", "--set target.model=PATH"]),
        ("engine = 3\n" + MINIMAL, None, ["engine", "3", "[engine]"]),
        ("engine = 3\n" + MINIMAL, "engine.device=cpu", ["engine", "3", "table"]),
        (MINIMAL, "port=1", ["--set port=1", "table.key=value"]),
        (MINIMAL, "server.port", ["--set server.port", "table.key=value"]),
        ("[target]\nmodel = oops\n", None, ["config.toml", "line 2", "correct"]),
    ],
)
def test_mistakes(tmp_path: Path, text: str, override: str | None, parts: list[str]) -> None:
    line = message(tmp_path, text, *([override] if override else []))
    for part in parts:
        assert part in line


def test_mistakes_never_show_how_they_were_found(tmp_path: Path) -> None:
    line = message(tmp_path, MINIMAL, "engine.num_draft_tokens=abc")
    assert "literal" not in line
    assert "more" not in line


def test_options_are_blamed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"server\.port = 'x' in --port x: it must be"):
        load_config(path, ["server.port=1"], {"server.host": None, "server.port": "x"})
    assert load_config(path, ["server.port=1"], {"server.port": "2"}).server.port == 2


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    assert message(tmp_path, MINIMAL, "server.port=a", "server.host=1").endswith("(and 1 more)")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.toml", [])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, [])
    (tmp_path / "latin.toml").write_bytes(b'model = "\xe9"')
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "latin.toml", [])


def test_help_explains_every_key() -> None:
    text = config_help()
    for line in ("[target]", "[drafter]", "[engine]", "[server]"):
        assert line in text
    assert "max_num_seqs  (integer, default 64)" in text
    assert "model  (string, required)" in text
    assert "device  (auto | cpu | cuda, default auto)" in text
    assert "synthetic_acceptance_rates  (list of numbers, optional)" in text
    assert "None" not in text
