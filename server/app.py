"""The ASGI application."""

from fastapi import FastAPI

from server.config import ServerConfig
from server.errors import install_error_handlers
from server.middleware import BodyLimit, RequestContext
from server.routes import router
from server.service import Service
from server.static_files import router as static_files


def create_app(service: Service, config: ServerConfig) -> FastAPI:
    """The API over ``service``, which may still be loading."""
    # No documentation pages: they would load scripts from elsewhere. /openapi.json is there.
    app = FastAPI(title="DFlash server", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = service
    app.include_router(router)
    app.include_router(static_files)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(RequestContext)  # added last: the outermost
    return app
