"""Configuration of the whole server, from a TOML file and ``--set`` overrides.

Whatever is wrong with it becomes one ConfigError of one line: the key, the value and the remedy.
"""

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from engine.config import ConfigError, EngineConfig, Table


class ServerConfig(Table):
    """``[server]``: the HTTP side."""

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    max_body_bytes: int = Field(
        8 * 1024 * 1024, ge=1024, description="largest request body; larger ones are answered 413"
    )
    shutdown_timeout: int = Field(
        30, ge=0, description="seconds that running requests get to finish after SIGTERM or Ctrl-C"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe messages to log; info: one line for each request"
    )


class Config(EngineConfig):
    """Everything in the configuration file."""

    server: ServerConfig = ServerConfig()

    @property
    def served_name(self) -> str:
        """The model's name in the API."""
        return self.target.served_name or Path(self.target.model).resolve().name

    def engine_config(self) -> EngineConfig:
        """The part that the worker knows, without the tables of the API process."""
        return EngineConfig(target=self.target, drafter=self.drafter, engine=self.engine)


def load_config(path: str | Path, overrides: list[str]) -> Config:
    """Read ``path`` and apply overrides of the form ``table.key=value``; raises ConfigError."""
    tables = _read_toml(Path(path))
    for override in overrides:
        _apply_override(tables, override)
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_explain(error, str(path))) from None


def config_keys() -> Iterator[tuple[str, type[BaseModel]]]:
    """The tables of the configuration: name and model."""
    for name, field in Config.model_fields.items():
        models = [field.annotation, *get_args(field.annotation)]
        yield name, next(m for m in models if isinstance(m, type) and issubclass(m, BaseModel))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; pass the path of a TOML configuration file"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); pass the path of a TOML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path}: not UTF-8 text; TOML files are UTF-8, save it as such"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}; correct that line") from None


def _apply_override(tables: dict[str, Any], override: str) -> None:
    key, equals, raw = override.partition("=")
    table, dot, name = key.strip().partition(".")
    if not (table and dot and name and equals):
        raise ConfigError(
            f"--set {override}: expected table.key=value, for example --set engine.max_num_seqs=8"
        )
    values = tables.setdefault(table, {})
    if not isinstance(values, dict):
        raise ConfigError(f"--set {override}: {table} is not a table; remove {table} = {values!r}")
    values[name] = _parse_value(raw)


def _parse_value(raw: str) -> Any:
    """A TOML value, or the string itself: quoting names in a shell is a nuisance."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _explain(error: ValidationError, source: str) -> str:
    """One line about the first mistake, in the user's terms rather than pydantic's."""
    first, *others = error.errors(include_url=False)
    line = _explain_one(first, source)
    return f"{line} (and {len(others)} more)" if others else line


def _explain_one(error: ErrorDetails, source: str) -> str:
    key = ".".join(str(part) for part in error["loc"])
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key {key} = {value!r} in {source}: {_suggest(key)}"
        case "missing":
            return f"missing key {key} in {source}: add it, or pass --set {_example(key)}"
        case "model_type" | "model_attributes_type":
            return f"{key} = {value!r} in {source}: {key} is a table; write it as [{key}] with keys"
    return f"{key} = {value!r} in {source}: {_lower_first(error['msg'])}; {_describe(key)}"


def _suggest(key: str) -> str:
    known = [name for name, _ in config_keys()]
    known += [f"{name}.{field}" for name, model in config_keys() for field in model.model_fields]
    # A key in the wrong table is at least as likely as a misspelt one.
    same_name = [k for k in known if "." in k and k.rpartition(".")[2] == key.rpartition(".")[2]]
    close = same_name or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "remove it, or see --help for all keys"


def _example(key: str) -> str:
    return f"{key}=PATH" if key.endswith("model") else f"{key}.model=PATH"


def _describe(key: str) -> str:
    table, _, name = key.partition(".")
    fields = dict(config_keys())[table].model_fields if table in Config.model_fields else {}
    description = fields[name].description if name in fields else None
    return f"set the {description}" if description else "see --help"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
