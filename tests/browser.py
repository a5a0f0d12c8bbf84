"""A browser for tests: a small driver of Chromium over the DevTools protocol.

    async def test_it_sends(browser: Browser):
        async with browser.open(url) as page:
            await page.until("document.querySelectorAll('li').length == 3")
            await page.click("button.send")
            assert page.problems == []

All tests of a run share one Chromium; a page shares nothing with others.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct

#: Seconds; only what hangs takes them.
PATIENCE = 60

Params = dict[str, Any]


class BrowserError(AssertionError):
    """The browser could not do what was asked, or a page did not become what was waited for."""


class Problem(Struct, frozen=True):
    """Something that went wrong in a page.

    Args:
        kind: `console` (an error that a script told), `exception` (nobody caught it), `csp`
            (forbidden by the Content-Security-Policy), `network` (a request failed), `dialog`
            (a script opened one; it was dismissed), or another source of Chromium's own log.
        text: What Chromium says of it.
    """

    kind: str
    text: str


class _Connection:
    """Commands to the browser and their answers, and events to whom they concern."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Params]] = {}
        self.listeners: dict[str, Callable[[str, Params], None]] = {}

    async def call(self, method: str, params: Params, session: str | None = None) -> Params:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(PATIENCE):
            return await answer

    async def listen(self) -> None:
        async for message in self._socket:
            self._take(json.loads(message.data))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BrowserError("the browser has gone"))

    def _take(self, message: Params) -> None:
        if "id" not in message:
            listener = self.listeners.get(message.get("sessionId", ""))
            if listener is not None:
                listener(message["method"], message["params"])
            return
        answer = self._answers.pop(message["id"])
        if answer.done():  # the caller has stopped waiting
            return
        if "error" in message:
            answer.set_exception(BrowserError(message["error"]["message"]))
        else:
            answer.set_result(message["result"])


class Page:
    """One tab.

    Attributes:
        problems: What went wrong in it so far.
    """

    def __init__(self, connection: _Connection, session: str) -> None:
        self._connection = connection
        self._session = session
        self._loaded: set[str] = set()
        self._load = asyncio.Event()
        self._tasks: set[asyncio.Task[Params]] = set()
        self.problems: list[Problem] = []
        connection.listeners[session] = self._event

    async def call(self, method: str, **params: Any) -> Params:
        return await self._connection.call(method, params, self._session)

    async def prepare(self) -> None:
        """Listen to what goes on in it."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(domain + ".enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def _event(self, method: str, params: Params) -> None:
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
            self._load.set()
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(Problem("dialog", params["message"]))
            task = asyncio.create_task(self.call("Page.handleJavaScriptDialog", accept=False))
            self._tasks.add(task)
        else:
            self.problems += _problems(method, params)

    def problems_but(self, *kinds: str) -> list[Problem]:
        """Return what went wrong, apart from some kinds."""
        return [problem for problem in self.problems if problem.kind not in kinds]

    async def goto(self, url: str) -> None:
        answer = await self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"cannot load {url}: {answer['errorText']}")
        async with asyncio.timeout(PATIENCE):
            # What was there before may only now be loaded.
            while answer["loaderId"] not in self._loaded:
                self._load.clear()
                await self._load.wait()

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; of a promise, what it comes to."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {_exception(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    async def until(self, condition: str, *, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true in the page, also over a reload; return its value."""
        found = None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not found:
                    with suppress(BrowserError):  # the page it was asked in has gone
                        found = await self.evaluate(_WAIT.replace("CONDITION", condition))
        if not found:
            text = await self.evaluate("document.body.innerText")
            raise BrowserError(f"not within {seconds} s: {condition}\n{text}\n{self.problems}")
        return found

    async def text(self, selector: str = "body") -> str:
        return str(await self.evaluate(f"{_find(selector)}.innerText"))

    async def click(self, selector: str) -> None:
        """Click as a person would: on the middle of an element, once it is there to be clicked."""
        place = await self.until(_MIDDLE.replace("ELEMENT", _find(selector)))
        where = {"x": place["x"], "y": place["y"], "button": "left", "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type="mousePressed", **where)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", **where)

    async def type(self, text: str) -> None:
        """Type a text where the focus is."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press and let go of a key: Tab, Enter, Escape, Space, Home, End or an arrow."""
        code, text = _KEYS[key]
        named = {"key": text if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def view(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show it in a window of so many pixels, still; under 600 wide it is a phone."""
        phone = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = await self.call(
            "Page.captureScreenshot",
            captureBeyondViewport=whole,
            **({"clip": await self.evaluate(_WHOLE)} if whole else {}),
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    async def spoken(self) -> list[tuple[str, str]]:
        """Return what a screen reader speaks: role and name of each element, in order."""
        nodes = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]


#: Looks again and again, in the page itself. Ends after a second, so that a lost page is seen.
_WAIT = """new Promise(resolve => {
  const end = performance.now() + 1000, look = () => {
    let found; try { found = (CONDITION) } catch {}
    if (found instanceof Node) found = true;
    found || performance.now() > end ? resolve(found) : setTimeout(look, 15);
  };
  look();
})"""
_MIDDLE = """(element => {
  if (!element || element.disabled || !element.checkVisibility()) return null;
  element.scrollIntoView({block: "center", behavior: "instant"});
  const {x, y, width, height} = element.getBoundingClientRect();
  return {x: x + width / 2, y: y + height / 2};
})(ELEMENT)"""
_WHOLE = """({x: 0, y: 0, width: document.documentElement.clientWidth, scale: 1,
  height: document.documentElement.scrollHeight})"""

_KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "Space": (32, " "),
    "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""),
    "End": (35, ""), "Home": (36, ""),
}  # fmt: skip


def _find(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})"


def _problems(method: str, params: Params) -> list[Problem]:
    if method == "Runtime.exceptionThrown":
        return [Problem("exception", _exception(params["exceptionDetails"]))]
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
        said = [str(each.get("value", each.get("description"))) for each in params["args"]]
        return [Problem("console", " ".join(said))]
    if method == "Log.entryAdded" and params["entry"]["level"] == "error":
        entry = params["entry"]
        forbidden = "Content Security Policy" in entry["text"]
        return [Problem("csp" if forbidden else entry["source"], entry["text"])]
    return []


def _exception(details: Params) -> str:
    return str(details.get("exception", {}).get("description", details["text"]))


class Browser:
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def open(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> AsyncIterator[Page]:
        call = self._connection.call
        context = (await call("Target.createBrowserContext", {}))["browserContextId"]
        target = await call(
            "Target.createTarget", {"url": "about:blank", "browserContextId": context}
        )
        attached = await call(
            "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}
        )
        page = Page(self._connection, attached["sessionId"])
        try:
            await page.prepare()
            await page.view(width, height, dark=dark)
            await page.goto(url)
            yield page
        finally:
            await call("Target.disposeBrowserContext", {"browserContextId": context})


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Browser]:
    """Drive a running Chromium, by the URL of its DevTools (`chromium.running_chromium`)."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, max_msg_size=0) as socket,
    ):
        connection = _Connection(socket)
        listening = asyncio.create_task(connection.listen())
        try:
            yield Browser(connection)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
