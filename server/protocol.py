"""Requests and responses of the API.

Every number is checked for its range and every list for its length before anything is allocated.
Types are strict: a string is no number. NaN and infinity are refused.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from engine.messages import MAX_STOP_TOKEN_IDS
from server.unsupported import refuse_unsupported

MAX_CHOICES = 128
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_STOP_STRINGS = 4
MAX_STOP_STRING_LENGTH = 1024
MAX_LOGIT_BIASES = 1024
MAX_TOKENS = 2**31 - 1

TEMPLATE_KWARGS = frozenset({"enable_thinking", "preserve_thinking", "thinking"})
"""What a request may hand to the chat template: switches of thinking, by the names in use."""


class RequestModel(BaseModel):
    """Strict about what we know, tolerant of parameters that nobody has told us about."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


def _check_unicode(text: str) -> str:
    # JSON can escape half a surrogate pair; nothing further down takes such a string.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the text has a lone surrogate, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_check_unicode)]


class TextPart(RequestModel):
    """One part of a message's content. Text is the only kind that is understood."""

    type: Literal["text"]
    text: Text


def _flatten_content(content: Any) -> Any:
    """Text parts become one text: not every chat template understands parts."""
    if not isinstance(content, list):
        return content
    if len(content) > MAX_CONTENT_PARTS:
        raise ValueError(
            f"{len(content)} content parts are too many, at most {MAX_CONTENT_PARTS} are accepted"
        )
    return "\n".join(_text_of(part) for part in content)


def _text_of(part: Any) -> str:
    if not isinstance(part, dict):
        raise ValueError("a content part must be an object with type and text")
    if part.get("type") != "text":
        raise ValueError(
            f"content parts of type {str(part.get('type'))[:40]!r} are not supported, only 'text'"
        )
    if not isinstance(part.get("text"), str):
        raise ValueError("a content part of type 'text' needs a string in text")
    return str(part["text"])


Content = Annotated[
    Text | None,
    BeforeValidator(_flatten_content, json_schema_input_type=str | list[TextPart] | None),
]


class FunctionCall(RequestModel):
    """The call itself; ``arguments`` is JSON text."""

    name: Text
    arguments: Text


class ToolCall(RequestModel):
    """A call that the assistant made in an earlier turn."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(RequestModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _needs_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role!r} needs content")
        return self

    @property
    def num_characters(self) -> int:
        """Length of all texts that a chat template may print."""
        texts = [self.content, self.reasoning_content, self.reasoning]
        texts += [call.function.arguments for call in self.tool_calls or ()]
        return sum(len(text) for text in texts if text)


def _check_number_of_messages(messages: Any) -> Any:
    # Before anything is made of them: a list of millions would hold up everyone else.
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ValueError(
            f"{len(messages)} messages are too many, at most {MAX_MESSAGES} are accepted"
        )
    return messages


Messages = Annotated[
    list[Message],
    Field(min_length=1),
    BeforeValidator(_check_number_of_messages, json_schema_input_type=list[Message]),
]


class StreamOptions(RequestModel):
    """What a stream carries besides the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


def _as_list(stop: Any) -> Any:
    if stop is None:
        return []
    if stop == "":
        raise ValueError("a stop string must not be empty; leave stop out to have none")
    return [stop] if isinstance(stop, str) else stop


StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_STRING_LENGTH)]
StopStringList = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_as_list, json_schema_input_type=StopString | list[StopString] | None),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _check_token_keys(biases: dict[str, float] | None) -> dict[str, float] | None:
    for key in biases or {}:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"keys must be token ids, not {key[:40]!r}")
    return biases


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIASES),
    AfterValidator(_check_token_keys),
]


def _check_template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    for name, value in kwargs.items():
        if name not in TEMPLATE_KWARGS:
            allowed = ", ".join(sorted(TEMPLATE_KWARGS))
            raise ValueError(f"{name[:40]!r} is not allowed, only {allowed}")
        if not isinstance(value, bool | int | float | str | None) or len(str(value)) > 64:
            raise ValueError(f"{name} must be a plain value")
        _check_unicode(str(value))
    # A null asks for the default; to a template, None is a value like others.
    return {name: value for name, value in kwargs.items() if value is not None}


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_template_kwargs)]


class ChatCompletionRequest(RequestModel):
    """``POST /v1/chat/completions``. Sampling parameters left out take the checkpoint's values."""

    model: Text | None = None
    messages: Messages
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    stop: StopStringList = []
    stop_token_ids: list[TokenId] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: LogitBias | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)

    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    cache_salt: Text | None = Field(None, max_length=256)
    chat_template_kwargs: TemplateKwargs | None = None
    # These two are for the caller's own records and change nothing here.
    user: Text | None = Field(None, max_length=1024)
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, request: Any) -> Any:
        if isinstance(request, dict):
            refuse_unsupported(request)
        return request

    @property
    def requested_max_tokens(self) -> int | None:
        """``max_completion_tokens``, or ``max_tokens``, its older name."""
        return self.max_completion_tokens or self.max_tokens

    @model_validator(mode="after")
    def _min_not_above_max(self) -> Self:
        limit = self.requested_max_tokens
        if self.min_tokens and limit and self.min_tokens > limit:
            name = "max_completion_tokens" if self.max_completion_tokens else "max_tokens"
            raise PydanticCustomError(
                "min_above_max",
                "{min_tokens} is above {name} = {limit}",
                {
                    "param": "min_tokens",
                    "min_tokens": self.min_tokens,
                    "name": name,
                    "limit": limit,
                },
            )
        return self


class PromptTokensDetails(BaseModel):
    """``cached_tokens`` came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(BaseModel):
    """``reasoning_tokens`` were spent on thinking."""

    reasoning_tokens: int = 0


class Usage(BaseModel):
    """Tokens that a request cost, over all of its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class SpeculativeDecoding(BaseModel):
    """How well the drafter guessed. ``acceptance_histogram[j]``: steps that accepted j drafts;
    ``synthetic``: by chance, to measure speed."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    synthetic: bool


class ResponseMetrics(BaseModel):
    """What the server measured about one request."""

    speculative_decoding: SpeculativeDecoding


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str


class Choice(BaseModel):
    """One of the ``n`` answers."""

    index: int
    message: AssistantMessage
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The whole response of a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    metrics: ResponseMetrics | None = None


class ModelCard(BaseModel):
    """A served model. ``max_model_len`` is known once it is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dflash-server"
    max_model_len: int | None = None


class ModelList(BaseModel):
    """``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
