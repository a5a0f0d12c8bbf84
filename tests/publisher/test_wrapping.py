"""The documents as ASGI and WSGI applications that wrap another application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from rsnotify.runtime.web_messages import WebRequest, WebResponse, send_response
from rsnotify_publisher import Publisher, SourceDescription, asgi_application, wsgi_application
from rsnotify_publisher.web.responses import file_representation, respond
from tests.publisher.helpers import BASE, PATIENCE, QUICK, quick_publisher
from tests.web_servers import KINDS, serving_answers, serving_asgi, serving_wsgi


def wsgi_page(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"a page"]


async def asgi_page(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a page; like Django, without lifespan."""
    if scope["type"] != "http":
        raise ValueError("only HTTP")
    await PlainTextResponse("a page")(scope, receive, send)


def wrapped(
    source: Publisher | SourceDescription, kind: str, page: bool = True
) -> AbstractAsyncContextManager[str]:
    if kind == "asgi":
        return serving_asgi(asgi_application(source, asgi_page if page else None))
    return serving_wsgi(wsgi_application(source, wsgi_page if page else None))


async def status_of(client: aiohttp.ClientSession, url: str, method: str = "GET") -> int:
    async with client.request(method, url) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
async def test_other_paths_belong_to_the_wrapped_application(
    tmp_path: Path, client: aiohttp.ClientSession, kind: str
):
    publisher = quick_publisher(tmp_path)
    publisher.start()
    async with wrapped(publisher, kind) as url:
        assert await publisher.await_published(PATIENCE)
        for path in ("/", "/data/", "/data/a", "/data/resourcesync/", "/robots.txt"):
            async with client.get(url + path) as response:
                assert await response.text() == "a page"
        for path in ("/data/changelist.xml", "/.well-known/resourcesync"):
            async with client.get(url + path) as response:
                assert response.content_type == "application/xml"


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
async def test_without_a_wrapped_application_other_paths_result_in_404(
    tmp_path: Path, client: aiohttp.ClientSession, kind: str
):
    publisher = Publisher(tmp_path, "https://source.example/", options=QUICK)
    async with wrapped(publisher, kind, page=False) as url:
        assert await status_of(client, url + "/data") == 404
        async with client.get(url + "/robots.txt") as response:
            assert "Sitemap: https://source.example/resourcelist.xml" in await response.text()
        async with client.post(url + "/changelist.xml", data=b"x") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


async def test_the_publisher_runs_around_the_lifespan_of_the_application(tmp_path: Path):
    publisher = quick_publisher(tmp_path)
    order: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await publisher.aupdated(BASE + "starts")
        order.append("starts")
        yield
        await publisher.aupdated(BASE + "ends")
        order.append("ends")

    app = asgi_application(publisher, Starlette(lifespan=lifespan))
    async with serving_asgi(app, lifespan="on"):
        assert order == ["starts"]
    assert order == ["starts", "ends"]
    assert (tmp_path / "documents/changelist.xml").read_text().count("<loc>") == 2


async def run_lifespan(
    app: Any,
    *messages: str,
    sent: list[dict[str, Any]],
    on_started: Callable[[], object] = lambda: None,
) -> list[str]:
    """Send the messages of a server to an application. Return the types of its messages."""
    waiting = [f"lifespan.{message}" for message in messages]

    async def receive() -> dict[str, str]:
        if waiting and waiting[0] == "lifespan.shutdown":
            assert sent[-1]["type"] == "lifespan.startup.complete", "a server would wait for it"
            on_started()
        return {"type": waiting.pop(0)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    return [message["type"] for message in sent]


async def no_lifespan(scope: Any, receive: Any, send: Any) -> None:
    """Ignore all but requests, instead of raising an error."""


async def no_lifespan_after_reading(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "http.request"


@pytest.mark.parametrize("app", [no_lifespan, no_lifespan_after_reading])
async def test_the_publisher_runs_although_the_application_has_no_lifespan(
    tmp_path: Path, app: Any
):
    publisher = quick_publisher(tmp_path)
    sent = await run_lifespan(
        asgi_application(publisher, app),
        *("startup", "shutdown"),
        sent=[],
        on_started=lambda: publisher.updated(BASE + "while-it-runs"),
    )
    assert sent == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert (tmp_path / "documents/changelist.xml").read_text().count("<loc>") == 1


async def test_a_failed_start_of_the_application_is_sent_once(tmp_path: Path):
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    app = asgi_application(quick_publisher(tmp_path), fails)
    assert await run_lifespan(app, "startup", sent=[]) == ["lifespan.startup.failed"]


async def test_an_application_that_fails_after_its_start_fails_the_server(tmp_path: Path):
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        raise ZeroDivisionError

    app, sent = asgi_application(quick_publisher(tmp_path), fails), list[dict[str, Any]]()
    with pytest.raises(ZeroDivisionError):
        await run_lifespan(app, "startup", sent=sent)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete"]


async def test_a_publisher_that_cannot_start_prevents_the_server_from_starting(tmp_path: Path):
    with Publisher(tmp_path, "https://other.example/", options=QUICK) as other:
        other.updated("https://other.example/1")
    app, sent = asgi_application(quick_publisher(tmp_path), asgi_page), list[dict[str, Any]]()
    assert await run_lifespan(app, "startup", sent=sent) == ["lifespan.startup.failed"]
    assert "https://other.example/" in sent[0]["message"]


async def test_a_wsgi_application_serves_other_pages_if_the_publisher_cannot_start(
    tmp_path: Path, client: aiohttp.ClientSession
):
    with Publisher(tmp_path, "https://other.example/", options=QUICK) as other:
        other.updated("https://other.example/1")
    async with wrapped(quick_publisher(tmp_path), "wsgi") as url:
        assert await status_of(client, url + "/data/changelist.xml") == 503
        assert await status_of(client, url + "/page") == 200


async def test_it_can_be_mounted_at_the_path_of_the_base_url(
    tmp_path: Path, client: aiohttp.ClientSession
):
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("home")

    with quick_publisher(tmp_path) as publisher:
        documents = Mount("/data", app=asgi_application(publisher))
        assert await publisher.await_published(PATIENCE)
        async with serving_asgi(Starlette(routes=[Route("/", home), documents])) as url:
            assert await status_of(client, url + "/data/changelist.xml") == 200
            assert await status_of(client, url + "/data/none") == 404


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
async def test_several_sets_are_served_together(
    tmp_path: Path, client: aiohttp.ClientSession, kind: str
):
    base = "https://source.example/"
    sets = [Publisher(tmp_path / name[0], base + name, options=QUICK) for name in ("a%20b/", "c/")]
    source = SourceDescription(base, sets)
    async with source, wrapped(source, kind, page=False) as url:
        for publisher in sets:
            assert await publisher.await_published(PATIENCE)
        for path in ("/a%20b/changelist.xml", "/c/changelist.xml", "/.well-known/resourcesync"):
            assert await status_of(client, url + path) == 200


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_that_is_truncated_while_it_is_sent_breaks_the_connection(
    tmp_path: Path, client: aiohttp.ClientSession, kind: str
):
    path = tmp_path / "long"

    def answer(request: WebRequest) -> WebResponse:
        path.write_bytes(b"x" * 1_000_000)
        response = respond(request, lambda: file_representation(path), {})
        path.write_bytes(b"x" * 300_000)
        return response

    async with serving_answers(answer, kind) as url, client.get(url + "/x") as response:
        assert response.content_length == 1_000_000
        with pytest.raises((aiohttp.ClientPayloadError, ConnectionError)):
            await response.read()


async def test_a_disconnected_client_ends_the_response(tmp_path: Path):
    path = tmp_path / "long"
    path.write_bytes(b"x" * 10_000_000)
    sent = 0

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent
        sent += len(message.get("body", b""))

    response = respond(WebRequest("GET", "/", "", {}), lambda: file_representation(path), {})
    await asyncio.wait_for(send_response(response, {"method": "GET"}, receive, send), 60)
    assert sent < 10_000_000
