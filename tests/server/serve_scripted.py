"""``python -m server`` over a scripted engine: python tests/server/serve_scripted.py CONFIG …

What the engine does is chosen by target.served_name: ``tiny`` answers, ``hangs`` never becomes
ready, ``fails`` refuses to start, ``slow`` takes its time between steps.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import server.startup
from engine.config import ConfigError, EngineConfig
from engine.messages import Ready
from server.__main__ import main
from server.tokenizer import load_tokenizer
from tests.server.scripted_engine import ScriptedEngine, answer

TEXT = "The quick brown 😀 fox jumps over the lazy dog."


class Engine(ScriptedEngine):
    """A scripted engine made from a configuration, as EngineClient is."""

    def __init__(self, config: EngineConfig) -> None:
        tokens = load_tokenizer(Path(config.target.model)).encode(TEXT)
        steps: list[Any] = [*answer(tokens)]
        name = config.target.served_name
        if name == "slow":
            steps = [step for output in steps for step in (output, 0.2)]
        error = ConfigError("target.model = 'x': no such thing;\nuse another")
        super().__init__(steps, start_error=error if name == "fails" else None, config=config)

    async def start(self) -> Ready:
        assert self.config is not None
        if self.config.target.served_name == "hangs":
            await asyncio.Event().wait()
        return await super().start()

    async def close(self) -> None:
        print("engine closed", flush=True)


server.startup.EngineClient = Engine  # type: ignore[assignment, misc]

if __name__ == "__main__":
    sys.exit(main())
