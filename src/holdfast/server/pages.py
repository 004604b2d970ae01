"""Pages: the viewer and the inbox, rendered on the server."""

from __future__ import annotations

from html import escape

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from holdfast.server.access import COOKIE, COOKIE_SECONDS, Access

router = APIRouter()


@router.get("/")
async def front_page() -> Response:
    """Return the front page."""
    return HTMLResponse("<!doctype html><title>Holdfast</title>")


@router.get("/login")
async def sign_in(request: Request, code: str = "") -> Response:
    """Sign a browser in by its one-time link.

    The cookie is not sent along with a redirect that another site began, so a page leads on.
    """
    access: Access = request.app.state.access
    principal = access.use_link(code)
    if principal is None:
        return sign_in_page()
    response = HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta http-equiv=refresh content="0;url=/"><title>Signed in · Holdfast</title>'
        '<p>Signed in. <a href="/">Go on</a>'
    )
    response.set_cookie(
        COOKIE, access.cookie(principal), max_age=COOKIE_SECONDS, httponly=True, samesite="strict"
    )
    return response


def sign_in_page() -> Response:
    """Return the page for whoever is not signed in."""
    return HTMLResponse("<!doctype html><title>Sign in</title>", 401)


def error_page(
    request: Request, status: int, code: str, message: str, request_id: str | None
) -> Response:
    """Return the page of an error."""
    return HTMLResponse(f"<!doctype html><title>Error</title>{escape(message)}", status)
