"""EngineClient: the API process's side of the engine (interface; being implemented)."""

from collections.abc import AsyncIterator

from engine.config import EngineConfig
from engine.messages import Output, Ready, SamplingParams, Stats


class EngineDeadError(Exception):
    """The worker died or stopped answering; requests in flight are lost."""


class EngineClient:
    """Starts the worker process, submits requests and streams their outputs."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.ready: Ready | None = None
        self.stats = Stats()

    async def start(self) -> Ready:
        """Launch the worker and wait until it serves. Raises ConfigError with the worker's line."""
        raise NotImplementedError

    def generate(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[Output]:
        """Outputs of one request, one per step, ending with one whose finish_reason is set.

        Closing or cancelling the iterator aborts the request. Raises EngineDeadError.
        """
        raise NotImplementedError

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the worker's last sign of life."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """The worker process runs and its heartbeat is fresh (younger than 5 s)."""
        raise NotImplementedError

    async def close(self) -> None:
        """Shut the worker down (kill it if it does not leave) and remove the socket."""
        raise NotImplementedError
