"""The chat page: plain files, served as they lie in ``server/static``."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

DIRECTORY = Path(__file__).parent / "static"

# Our own table: what the mimetypes module says depends on the machine.
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

# The page shows what a model wrote. Even if something got past the sanitiser, it could run no
# script, load nothing from elsewhere and send nothing anywhere.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    ]
)

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Asset:
    """A file in memory. ``etag`` changes with its content."""

    content: bytes
    content_type: str
    etag: str


def load_assets(directory: Path) -> dict[str, Asset]:
    """The files under ``directory`` by relative path; of other types than the known: KeyError."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): _load(path) for path in files}


def _load(path: Path) -> Asset:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, CONTENT_TYPES[path.suffix], etag)


# Read once: requests look names up here and never touch the file system.
ASSETS = load_assets(DIRECTORY)


@router.api_route("/", methods=["GET", "HEAD"])
async def chat_page(request: Request) -> Response:
    """The chat page."""
    return _respond("index.html", request)


@router.api_route("/static/{path:path}", methods=["GET", "HEAD"])
async def static_file(path: str, request: Request) -> Response:
    """A file of the chat page."""
    return _respond(path, request)


def _respond(path: str, request: Request) -> Response:
    if path not in ASSETS:
        raise HTTPException(404)
    asset = ASSETS[path]
    headers = {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # Names carry no version: ask every time, and get 304 while nothing has changed.
        "Cache-Control": "no-cache",
        "ETag": asset.etag,
    }
    if _matches(request.headers.get("if-none-match", ""), asset.etag):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers=headers, media_type=asset.content_type)


def _matches(if_none_match: str, etag: str) -> bool:
    """A proxy that compresses may have made the tag a weak one."""
    return etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))
