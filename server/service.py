"""What requests are served with: the engine and the model's text side, from start to end."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from engine.client import EngineClient
from engine.config import ConfigError
from engine.messages import Ready
from server.chat_template import ChatTemplate, ChatTemplateError, load_chat_template
from server.errors import ApiError, invalid, unavailable
from server.metrics import Metrics
from server.protocol import ChatCompletionRequest, Message
from server.sampling_params import SamplingDefaults, load_sampling_defaults
from server.tokenizer import Tokenizer, load_tokenizer

RENDER_TIMEOUT_SECONDS = 30
LONG_CONVERSATION = 500_000
"""Characters from which rendering and tokenising take a good part of a second."""

MAX_SHOWN_NAME = 100

T = TypeVar("T")


@dataclass(frozen=True)
class TextModel:
    """The part of a checkpoint that deals with text."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: SamplingDefaults


def load_text_model(directory: Path) -> TextModel:
    """Read tokenizer, chat template and sampling defaults; raises ConfigError."""
    try:
        return TextModel(
            load_tokenizer(directory),
            load_chat_template(directory),
            load_sampling_defaults(directory),
        )
    except ConfigError:
        raise
    except Exception as error:  # a file broken in a way that nobody thought of
        raise ConfigError(
            f"target.model = {str(directory)!r}: its tokenizer or chat template cannot be used "
            f"({type(error).__name__}: {error}); fetch the checkpoint again"
        ) from error


def _check_vocabulary(text: TextModel, ready: Ready) -> None:
    """A prompt with an id that the model has no embedding for would take the worker down."""
    if text.tokenizer.vocab_size > ready.vocab_size:
        raise ConfigError(
            f"target.model: its tokenizer has {text.tokenizer.vocab_size} tokens, but the model's "
            f"vocab_size is {ready.vocab_size}; use the tokenizer that belongs to the checkpoint"
        )


@dataclass(frozen=True)
class Serving:
    """A loaded model."""

    engine: EngineClient
    ready: Ready
    text: TextModel

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and output may have together: what the KV cache cannot hold at once
        can never be served."""
        return min(self.ready.max_model_len, self.ready.num_kv_tokens)

    def check_length(self, messages: Sequence[Message]) -> None:
        """Raises ApiError for messages that cannot fit, without the work of rendering them."""
        length = _num_characters(messages)
        limit = self.max_model_len * self.text.tokenizer.longest_token
        if length > limit:
            raise invalid(
                f"The messages have {length} characters, but this model's maximum context length "
                f"of {self.max_model_len} tokens cannot hold more than {limit}. "
                "Shorten the messages.",
                "messages",
                "context_length_exceeded",
            )

    def room_after(self, prompt_token_ids: Sequence[int]) -> int:
        """Tokens that fit after a prompt; raises ApiError if there are none."""
        length, limit = len(prompt_token_ids), self.max_model_len
        if length == 0:
            raise invalid("The prompt has no tokens.", "messages")
        if length >= limit:
            raise invalid(
                f"The prompt has {length} tokens, but this model's maximum context length is "
                f"{limit} tokens, prompt and output together. Shorten the messages.",
                "messages",
                "context_length_exceeded",
            )
        return limit - length


class Service:
    """Answers ``/health`` from the first moment; everything else once ``start`` is through."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.created = int(time.time())
        self.metrics = Metrics()
        self._serving: Serving | None = None
        self._renderers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="render")
        # Conversations of megabytes wait for each other, and nobody waits for them.
        self._long_renderers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render-long")

    async def start(self, engine: EngineClient, directory: Path) -> Serving:
        """Start the engine and, meanwhile, read the text model of the checkpoint in ``directory``.

        Raises what ``engine.start`` raises, or ConfigError. The caller closes the engine.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                ready = tasks.create_task(engine.start())
                text = tasks.create_task(run_in_daemon_thread(load_text_model, directory))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        _check_vocabulary(text.result(), ready.result())
        self._serving = Serving(engine, ready.result(), text.result())
        self.metrics.attach(engine, ready.result())
        return self._serving

    def close(self) -> None:
        """Refuse requests from now on."""
        self._serving = None
        for renderers in (self._renderers, self._long_renderers):
            renderers.shutdown(wait=False, cancel_futures=True)

    def serving(self) -> Serving:
        """The loaded model; raises ApiError while there is none or its worker is dead."""
        if self._serving is None:
            raise unavailable("The model is loading.", "model_loading")
        if not self._serving.engine.alive:
            raise unavailable("The engine's worker does not answer.", "engine_dead")
        return self._serving

    @property
    def max_model_len(self) -> int | None:
        """Longest prompt plus output, once the model is loaded."""
        return self._serving.max_model_len if self._serving else None

    def check_model(self, name: str | None) -> None:
        """Raises ApiError for a model that is not served here. None: whatever is."""
        if name not in (None, self.model_name):
            shown = str(name)[:MAX_SHOWN_NAME]  # the client's own: of any length
            raise ApiError(
                404,
                f"The model {shown!r} does not exist; this server has {self.model_name!r}.",
                code="model_not_found",
                param="model",
            )

    async def prompt_token_ids(self, text: TextModel, request: ChatCompletionRequest) -> list[int]:
        """The conversation as token ids; rendered and tokenised in a thread."""
        if text.chat_template is None:
            raise invalid("The served checkpoint has no chat template.", "messages")
        loop = asyncio.get_running_loop()
        is_long = _num_characters(request.messages) > LONG_CONVERSATION
        work = loop.run_in_executor(
            self._long_renderers if is_long else self._renderers,
            _render,
            text.tokenizer,
            text.chat_template,
            request.messages,
            request.chat_template_kwargs,
        )
        try:
            return await asyncio.wait_for(work, RENDER_TIMEOUT_SECONDS)
        except ChatTemplateError as error:
            raise invalid(f"The chat template refused the messages: {error}", "messages") from error
        except TimeoutError:
            raise invalid(
                f"The messages took longer than {RENDER_TIMEOUT_SECONDS} s to render.", "messages"
            ) from None


def _num_characters(messages: Sequence[Message]) -> int:
    return sum(message.num_characters for message in messages)


def _render(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[Message],
    kwargs: dict[str, Any] | None,
) -> list[int]:
    return tokenizer.encode(template.render(messages, kwargs))


async def run_in_daemon_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Like asyncio.to_thread, but a process that is told to stop does not wait for the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, outcome))

    def work() -> None:
        outcome, failure = None, None
        try:
            outcome = function(*arguments)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome, failure)

    threading.Thread(target=work, daemon=True).start()
    return await future
