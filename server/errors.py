"""Errors in OpenAI's shape, whatever goes wrong: ``{"error": {message, type, param, code}}``.

Validation errors are 400 (never FastAPI's 422). Retry-After goes with every error that a client
may retry: the SDKs retry 5xx by themselves, and without the header they do it at once.
"""

from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

RETRY_AFTER_SECONDS = 5


class ApiError(HTTPException):
    """An error for the client. ``code`` is for programs, ``message`` for people."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers)
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the response, or of an error event in a stream."""
        kind = "invalid_request_error" if self.status_code < 500 else "server_error"
        error = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class ClientDisconnectedError(Exception):
    """The client left before its answer: nobody is there to be told."""


def invalid(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A 400 about one parameter."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str, code: str) -> ApiError:
    """A 503: the same request may succeed later."""
    return ApiError(503, message, code=code, retry_after=RETRY_AFTER_SECONDS)


def internal(message: str) -> ApiError:
    """A 500."""
    return ApiError(500, message, code="internal_error")


def body_too_large(limit: int) -> ApiError:
    """A 413."""
    return ApiError(
        413, f"The request body is larger than {limit} bytes.", code="request_too_large"
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make every error of ``app`` leave in OpenAI's shape."""
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientDisconnectedError, _disconnected)


def error_response(error: ApiError) -> JSONResponse:
    """``error`` as a response."""
    return JSONResponse(error.body, error.status_code, error.headers)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ApiError):
        return error_response(error)
    assert isinstance(error, StarletteHTTPException)
    if error.status_code == 400 and error.__cause__ is not None:
        return error_response(_unreadable_body(error.__cause__))
    path, method = request.url.path, request.method
    named = {
        404: ("not_found", f"There is no route {path[:200]}."),
        405: ("method_not_allowed", f"{path} does not accept {method}."),
    }
    code, message = named.get(error.status_code, ("invalid_request", str(error.detail)))
    response = error_response(ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    return response


def _unreadable_body(cause: BaseException) -> ApiError:
    """For what Python's JSON reader refuses otherwise than by a syntax error."""
    if isinstance(cause, RecursionError):
        reason = "it is nested too deeply; nest fewer arrays and objects"
    elif isinstance(cause, UnicodeDecodeError):
        reason = "it is not UTF-8; encode it as such"
    elif isinstance(cause, ValueError):  # after its subclass
        reason = "a number has too many digits; send numbers of at most 4300"
    else:
        reason = "send a JSON object as the body"
    return invalid(f"The request body cannot be read: {reason}.", None, "invalid_json")


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    del request
    assert isinstance(error, RequestValidationError)
    return error_response(_from_validation(error.errors()[0]))


async def _disconnected(request: Request, error: Exception) -> Response:
    # Nobody reads this; the status is for the log.
    del request, error
    return Response(status_code=499)


def _from_validation(error: Any) -> ApiError:
    """The first of pydantic's findings; the input is never echoed: it may be huge or NaN."""
    context = error.get("ctx") or {}
    param = context.get("param") or _param(error["loc"])
    match error["type"]:
        case "json_invalid":
            return invalid(
                f"The request body is not valid JSON: {context.get('error')}.", None, "invalid_json"
            )
        case "missing" if param is None:
            return invalid("The request has no JSON body.", None, "invalid_json")
        case "missing":
            return invalid(
                f"Missing required parameter: {param}.", param, "missing_required_parameter"
            )
        case "unsupported_parameter":
            return invalid(error["msg"], param, "unsupported_parameter")
        case "model_type" | "model_attributes_type" if param is None:
            return invalid(
                "The request body must be a JSON object, sent with Content-Type: application/json.",
                None,
                "invalid_json",
            )
    about = f"Invalid value for {param}" if param else "Invalid request"
    return invalid(f"{about}: {_message(error)}.", param)


def _message(error: Any) -> str:
    # pydantic writes "Value error, " before the text of a ValueError raised by a validator.
    reason = (error.get("ctx") or {}).get("error")
    text = str(reason) if isinstance(reason, ValueError) else str(error["msg"])
    text = text.replace(" after validation", "")
    return text[:1].lower() + text[1:]


def _param(location: tuple[str | int, ...]) -> str | None:
    """``("body", "messages", 0, "role")`` → ``messages[0].role``."""
    path = ""
    for part in location[1:]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    # Keys of the client's own are part of it: of any length, and not always valid Unicode.
    return ascii(path.lstrip("."))[1:-1][:200] or None
