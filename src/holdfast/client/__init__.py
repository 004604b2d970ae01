"""A small client of the HTTP API, for async code and for other code; needs the extra `client`."""

from holdfast.client.answers import Event, RequestRefused, Result, Session, Wait
from holdfast.client.async_client import AsyncClient
from holdfast.client.sync_client import Client

__all__ = ["AsyncClient", "Client", "Event", "RequestRefused", "Result", "Session", "Wait"]
