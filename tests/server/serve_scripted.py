"""``python -m server`` over a scripted engine: python tests/server/serve_scripted.py CONFIG …

How it starts is chosen by target.served_name: ``hangs`` never becomes ready, ``fails`` refuses,
``dies`` ends without a word, others serve. A request with the seed SLOW gets its
steps one by one, with pauses; at one with the seed DEADLY the worker ends in mid-answer.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import server.startup
from engine.client import EngineDeadError
from engine.config import ConfigError, EngineConfig
from engine.messages import Output, Ready, SamplingParams
from server.__main__ import main
from server.tokenizer import load_tokenizer
from tests.server.scripted_engine import ScriptedEngine, answer

TEXT = "The quick brown 😀 fox jumps over the lazy dog."
SLOW = 77
DEADLY = 99


class Engine(ScriptedEngine):
    """A scripted engine made from a configuration, as EngineClient is."""

    def __init__(self, config: EngineConfig) -> None:
        tokens = load_tokenizer(Path(config.target.model)).encode(TEXT)
        super().__init__([*answer(tokens)], config=config)
        if config.target.served_name == "fails":
            self.start_error = ConfigError("target.model = 'x': no such thing;\nuse another")
        if config.target.served_name == "dies":
            self.start_error = EngineDeadError("the engine worker exited with code 9")

    async def start(self) -> Ready:
        assert self.config is not None
        if self.config.target.served_name == "hangs":
            await asyncio.Event().wait()
        return await super().start()

    async def generate(
        self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, **rest: Any
    ) -> AsyncIterator[Output]:
        async for output in super().generate(request_id, prompt_token_ids, params, **rest):
            yield output
            if params.seed == DEADLY:
                self.died.set()
            if params.seed in (SLOW, DEADLY):
                await self._unless_closed(asyncio.sleep(0.2))

    async def close(self) -> None:
        await super().close()
        print("engine closed", flush=True)


server.startup.EngineClient = Engine  # type: ignore[assignment, misc]

if __name__ == "__main__":
    sys.exit(main())
