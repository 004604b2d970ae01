"""The application: API, pages and streams over one runtime, behind the guard.

`create_app` takes an open runtime and drives sessions in this process. Nothing here decides what a
session may do: routes parse, call the runtime and render.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from holdfast.core.errors import HoldfastError
from holdfast.runtime.runtime import Runtime
from holdfast.server import (
    api_people,
    api_reads,
    api_runs,
    api_sessions,
    api_stream,
    lenses,
    pages,
    run_lenses,
)
from holdfast.server.access import Access, Principal
from holdfast.server.api_stream import Streams
from holdfast.server.as_of import States
from holdfast.server.guard import Guard, Limits
from holdfast.server.hub import Hub
from holdfast.server.metrics import Metrics
from holdfast.server.problems import Denied, JsonDocument, problem, status_of
from holdfast.server.requests import Admin, Reader, Serving
from holdfast.stores.port import SessionFilter

logger = logging.getLogger("holdfast.server")

API = "/api/v1"
CODES = {404: "not_found", 405: "method_not_allowed"}
operations = APIRouter(tags=["operations"])


def create_app(
    runtime: Runtime,
    *,
    access: Access | None = None,
    hosts: Iterable[str] = ("127.0.0.1", "localhost"),
    anyone: Principal | None = None,
    read_only: bool = False,
    limits: Limits | None = None,
    drives: bool = True,
) -> FastAPI:
    """Return the application for a runtime.

    `hosts` are the values of the Host header that it answers. `anyone` is whoever calls without a
    token; by default nobody may. Without `drives` sessions are left to workers of the same store.
    """
    limits = limits or Limits()
    metrics = Metrics()
    hub = Hub(runtime, drives=drives)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.close()

    app = FastAPI(
        title="Holdfast",
        version="1",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # the page would load scripts from another host
        redoc_url=None,
        # What is served stays here, whatever the environment says about exporters.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
        lifespan=lifespan,
    )
    app.state.access = access or Access()
    app.state.serving = Serving(hub, limits, metrics, States())
    app.state.streams = Streams()
    for module in (api_sessions, api_reads, api_stream, api_people, api_runs):
        app.include_router(module.router, prefix=API)
    if find_spec("ag_ui") is not None:
        from holdfast.server import ag_ui  # needs the extra `ag-ui`

        app.include_router(ag_ui.router, prefix=API)
    app.include_router(operations)
    for module in (pages, lenses, run_lenses):
        app.include_router(module.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    app.add_exception_handler(HoldfastError, _holdfast_error)
    app.add_exception_handler(Denied, _denied)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(
        Guard,
        access=app.state.access,
        hosts=frozenset(host.lower() for host in hosts),
        limits=limits,
        metrics=metrics,
        anyone=anyone,
        read_only=read_only,
    )
    return app


@operations.get("/healthz")
async def health() -> JsonDocument:
    """Say that the process answers."""
    return JsonDocument({"status": "ok"})


@operations.get("/readyz")
async def readiness(request: Request) -> JsonDocument:
    """Say whether the store can be read."""
    serving: Serving = request.app.state.serving
    try:
        await serving.hub.main.sessions(limit=1)
    except Exception:
        logger.warning("the store cannot be read", exc_info=True)
        return JsonDocument({"status": "unavailable"}, status_code=503)
    return JsonDocument({"status": "ok"})


@operations.get(f"{API}/metrics")
async def metrics(asked: Admin) -> PlainTextResponse:
    """Return counters and gauges for Prometheus."""
    gauges = {}
    for status in ("running", "suspended", "interrupted"):
        page = await asked.runtime.sessions(SessionFilter(status=status), limit=1000)
        gauges[f"sessions_{status}"] = len(page.sessions)
    return PlainTextResponse(asked.serving.metrics.text(gauges))


@operations.get(f"{API}/agents")
async def list_agents(asked: Reader) -> JsonDocument:
    """Return the agents that sessions can be created for."""
    rows = [
        {"name": agent.name, "version": agent.version, "external": agent.external}
        for agent in asked.runtime.agents.values()
    ]
    return JsonDocument({"agents": rows})


@operations.get(f"{API}/me")
async def who_am_i(asked: Reader) -> JsonDocument:
    """Return whose token the request has, and what it may do."""
    who = asked.principal
    rights = [right for right in ("read", "act", "answer", "admin") if who.may(right)]
    return JsonDocument({"name": who.name, "tenant": who.tenant, "rights": rights})


def _shown(request: Request, status: int, code: str, message: str) -> Response:
    request_id = getattr(request.state, "request_id", None)
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return problem(status, code, message, request_id=request_id)
    return pages.error_page(request, status, code, message, request_id)


async def _holdfast_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    status = status_of(error)
    if status >= 500:
        logger.warning("%s %s failed", request.method, request.url.path, exc_info=error)
    return _shown(request, status, error.code, str(error))


async def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Denied)
    return _shown(request, error.status, error.code, str(error))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _shown(request, 400, "invalid_input", f"{where}: {first['msg']}")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "failed")
    return _shown(request, error.status_code, code, str(error.detail))


async def _bug(request: Request, error: Exception) -> Response:
    logger.error("this is a bug in Holdfast", exc_info=error)
    return _shown(request, 500, "internal_error", "this is a bug in Holdfast; see the server's log")
