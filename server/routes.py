"""The routes."""

import time
import uuid
from importlib import metadata

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from engine.messages import SamplingParams
from server.errors import ApiError
from server.generation import Generation, Job
from server.protocol import (
    ChatCompletion,
    ChatCompletionRequest,
    ModelCard,
    ModelList,
    StreamOptions,
)
from server.sampling_params import to_sampling_params
from server.service import Service
from server.streaming import Answer, Envelope, complete, open_stream

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, as one JSON body or as a stream."""
    service = _service(request)
    service.check_model(body.model)
    serving = service.serving()
    serving.check_length(body.messages)
    prompt_token_ids = await service.prompt_token_ids(serving.text, body)
    params = to_sampling_params(
        body,
        serving.text.sampling_defaults,
        serving.ready,
        room=serving.room_after(prompt_token_ids),
    )
    job = _job(body, prompt_token_ids, params)
    generation = Generation(
        serving.engine,
        serving.ready,
        serving.text.tokenizer,
        service.metrics,
        request.state.started_at,
    )
    request.state.generation = generation
    envelope = Envelope(job.request_id, int(time.time()), service.model_name)
    answer = Answer(generation, generation.deltas(job), envelope, job.num_choices)
    if body.stream:
        return await open_stream(request, answer, body.stream_options or StreamOptions())
    completion = await complete(request, answer)
    return Response(completion.model_dump_json(exclude_none=True), media_type="application/json")


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The one model that is served."""
    return ModelList(data=[_model_card(_service(request))])


@router.get("/v1/models/{model:path}")
async def get_model(model: str, request: Request) -> ModelCard:
    """The model of that name."""
    if not model:
        raise ApiError(
            404,
            "The name of a model is missing after /v1/models/; GET /v1/models lists the models.",
            code="not_found",
        )
    service = _service(request)
    service.check_model(model)
    return _model_card(service)


@router.get("/health")
async def health() -> dict[str, str]:
    """The process lives: its event loop answers."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Requests are served: the model is loaded and the worker's heartbeat is fresh. Else 503."""
    _service(request).serving()
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(_service(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version() -> dict[str, str]:
    """The server's version."""
    return {"version": server_version()}


def server_version() -> str:
    """As installed; a checkout that was never installed has none."""
    try:
        return metadata.version("dflash-server")
    except metadata.PackageNotFoundError:
        return "unknown"


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _model_card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_name, created=service.created, max_model_len=service.max_model_len
    )


def _job(body: ChatCompletionRequest, prompt_token_ids: list[int], params: SamplingParams) -> Job:
    return Job(
        # Not the client's x-request-id, which may come twice.
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        prompt_token_ids=prompt_token_ids,
        params=params,
        num_choices=body.n or 1,
        stop=tuple(body.stop),
        skip_special_tokens=body.skip_special_tokens is not False,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
