"""Starting the worker: checkpoints to local directories, a private socket, a process."""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.config import CheckpointConfig, ConfigError, EngineConfig

_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]


def resolve_checkpoints(config: EngineConfig) -> EngineConfig:
    """The same configuration with hub ids replaced by local directories, downloaded if need be.

    Raises ConfigError for a model that is neither.
    """
    target = _resolve("target", config.target)
    drafter = _resolve("drafter", config.drafter) if config.drafter else None
    return config.model_copy(update={"target": target, "drafter": drafter})


def _resolve(table: str, config: CheckpointConfig) -> CheckpointConfig:
    if Path(config.model).is_dir():
        if config.revision is not None:
            raise ConfigError(
                f"{table}.revision = {config.revision!r} has no meaning for the directory "
                f"{table}.model = {config.model!r}; remove it"
            )
        return config
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", config.model) or config.model.startswith("."):
        raise ConfigError(
            f"{table}.model = {config.model!r} is no directory; give a checkpoint's directory or a "
            "Hugging Face hub id such as Qwen/Qwen3-8B"
        )
    return config.model_copy(update={"model": _download(table, config), "revision": None})


def _download(table: str, config: CheckpointConfig) -> str:
    # Imported here: a server of a local checkpoint does not pay for it.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    weights = [] if config.load_format == "dummy" else ["*.safetensors"]
    try:
        return snapshot_download(
            config.model, revision=config.revision, allow_patterns=_FILES + weights
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"{table}.model = {config.model!r} (revision {config.revision or 'main'}) is no "
            f"directory here and could not be fetched from the Hugging Face hub: {reason}"
        ) from None


@dataclass(frozen=True)
class WorkerProcess:
    """A running worker and the private directory (mode 0700) that its socket lies in."""

    process: asyncio.subprocess.Process
    directory: tempfile.TemporaryDirectory[str]


async def launch_worker(config: EngineConfig, bind: Callable[[str], object]) -> WorkerProcess:
    """Start the worker; ``bind`` gets the socket's address before the process exists."""
    directory = tempfile.TemporaryDirectory(prefix="dflash-")
    address = f"ipc://{directory.name}/engine.sock"
    bind(address)
    settings = Path(directory.name) / "config.json"
    settings.write_text(config.model_dump_json())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.worker", address, str(settings), str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        # Ctrl-C goes to a terminal's process group; this process decides when the worker ends.
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    return WorkerProcess(process, directory)
