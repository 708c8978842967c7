"""The part of ``--help`` that explains every configuration key, generated from the models."""

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from server.config import config_keys

_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "true | false"}


def config_help() -> str:
    """Each table with its keys, their types, defaults and meaning."""
    sections = []
    for name, model in config_keys():
        summary = (model.__doc__ or "").partition("``: ")[2] or model.__doc__ or ""
        lines = [f"[{name}]  {summary.strip()}"]
        lines += [_describe(key, field) for key, field in model.model_fields.items()]
        sections.append("\n".join(lines))
    return "keys of the configuration file (also for --set table.key=value):\n\n" + "\n\n".join(
        sections
    )


def _describe(key: str, field: FieldInfo) -> str:
    return (
        f"  {key}  ({_type_name(field.annotation)}, {_default(field)})\n      {field.description}"
    )


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(a) for a in arguments if a is not type(None))
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is list:
        return f"list of {_type_name(arguments[0])}s"
    return _TYPE_NAMES.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "optional"
    default = str(field.default)
    return f"default {default.lower() if isinstance(field.default, bool) else default}"
