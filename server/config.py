"""Configuration of the whole server, from a TOML file and ``--set`` overrides.

Whatever is wrong with it becomes one ConfigError of one line: the key, the value and the remedy.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


def load_config(
    path: str | Path, overrides: Sequence[str], options: Mapping[str, str | None] | None = None
) -> Config:
    """Read ``path`` and apply overrides of the form ``table.key=value``; raises ConfigError.

    ``options`` are overrides with an option of their own, by ``table.key``; they come last and win.
    """
    tables = _read_toml(Path(path))
    sources = _Sources(str(path))
    for override in overrides:
        sources.flags[_apply_override(tables, override)] = f"--set {override}"
    for key, value in (options or {}).items():
        if value is not None:
            _apply_override(tables, f"{key}={value}")
            sources.flags[key] = f"--{key.rpartition('.')[2]} {value}"
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(_explain(error, tables, sources)) from None


@dataclass(frozen=True)
class _Sources:
    """Where values come from: the flag that set a key last, or else the file."""

    file: str
    flags: dict[str, str] = field(default_factory=dict)

    def of(self, key: str) -> str:
        of_table = (flag for name, flag in self.flags.items() if name.startswith(f"{key}."))
        return self.flags.get(key) or next(of_table, self.file)


def config_keys() -> Iterator[tuple[str, type[BaseModel]]]:
    """The tables of the configuration: name and model."""
    for name, table in Config.model_fields.items():
        models = [table.annotation, *get_args(table.annotation)]
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


def _apply_override(tables: dict[str, Any], override: str) -> str:
    """Set the value in ``tables``; returns the key."""
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
    return f"{table}.{name}"


def _parse_value(raw: str) -> Any:
    """A TOML value, or the string itself: quoting names in a shell is a nuisance."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if len(parsed) == 1 else raw


def _explain(error: ValidationError, tables: dict[str, Any], sources: _Sources) -> str:
    """One line about the first mistake, in the user's terms rather than pydantic's."""
    found: dict[str, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        # Deeper parts of the location are pydantic's: members of a union, items of a list.
        found.setdefault(".".join(map(str, details["loc"][:2])), []).append(details)
    (key, about), *others = found.items()
    line = _explain_one(key, about, _toml(_look_up(tables, key)), sources.of(key))
    return f"{line} (and {len(others)} more)" if others else line


def _explain_one(key: str, errors: list[ErrorDetails], value: str, source: str) -> str:
    match errors[0]["type"]:
        case "extra_forbidden":
            return f"unknown key {key} = {value} in {source}: {_suggest(key)}"
        case "missing":
            return f"missing key {key} in {source}: add it, or pass --set {_example(key)}"
        case "model_type" | "model_attributes_type":
            return f"{key} = {value} in {source}: {key} is a table; write it as [{key}] with keys"
    return f"{key} = {value} in {source}: {_reason(errors)}{_meaning(key)}"


def _reason(errors: list[ErrorDetails]) -> str:
    """What is allowed. Several errors about one key are the members of a union."""
    if isinstance(errors[0]["loc"][-1], int):  # an item of a list, where one says enough
        errors = errors[:1]
    prefix = "Input should be "
    if any(not e["msg"].startswith(prefix) for e in errors):
        return _lower_first(errors[0]["msg"])
    allowed = dict.fromkeys(e["msg"].removeprefix(prefix) for e in errors)
    return f"it must be {' or '.join(allowed)}"


def _look_up(tables: dict[str, Any], key: str) -> Any:
    table, dot, name = key.partition(".")
    value = tables.get(table)
    return value.get(name) if dot and isinstance(value, dict) else value


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _suggest(key: str) -> str:
    table, dot, name = key.partition(".")
    models = dict(config_keys())
    # A key in the wrong table is at least as likely as a misspelt one.
    same_name = [t for t, model in models.items() if dot and name in model.model_fields]
    if same_name:
        return f"did you mean {same_name[0]}.{name}?"
    known = list(models[table].model_fields) if dot else list(models)
    close = difflib.get_close_matches(name if dot else table, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {f'{table}.' if dot else ''}{close[0]}?"
    return "remove it, or see --help for all keys"


def _example(key: str) -> str:
    return f"{key}=PATH" if key.endswith("model") else f"{key}.model=PATH"


def _meaning(key: str) -> str:
    table, _, name = key.partition(".")
    fields = dict(config_keys())[table].model_fields if table in Config.model_fields else {}
    description = fields[name].description if name in fields else None
    return f" ({name}: {description})" if description else "; see --help"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
