"""A Source, a hub and a Destination as processes, with other software between them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rsnotify.format.model import Document
from rsnotify.format.reader import read_document
from tests.publisher.helpers import eventually, put
from tests.recipes.trial import Trial
from tests.running import PATIENCE, LoggingServer

#: As in `tests.reader`, ports stand for free ones.
SOURCE, HUB = "http://127.0.0.1:8000/", "http://127.0.0.1:8080/"


class Deployment(Trial):
    """A folder that is published, a hub that the Source pushes to, and a copy.

    Args:
        folder: Where everything is.
        settings: The configuration of the hub.
        hub: More options of the hub.
        source: More options of the Source.
        pushes_to: The URL at which the Source and Destinations reach the hub.
        environment: Variables of all three.
    """

    def __init__(
        self,
        folder: Path,
        settings: str = "",
        *,
        hub: str = "",
        source: str = "",
        pushes_to: str = HUB,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self.hub = f"rsnotify hub --config hub.toml --data hub --allow-private-addresses {hub}"
        super().__init__(folder, {}, hub=self.hub, environment=environment or {})
        self.source = (
            f"rsnotify source data --base-url {SOURCE} --heartbeat 1 --hub {pushes_to} "
            f"--allow-private-addresses {source}"
        )
        self.start(self.source)
        self.url = self.adapt(SOURCE)

    def prepare(self) -> None:
        self.write("hub.toml", self._settings)
        (self.folder / "data").mkdir()
        self.put("first.txt", "first")

    def put(self, name: str, text: str) -> None:
        put(self.folder / "data" / name, text)

    def follow_by(self, via: str, options: str = "") -> None:
        """Follow by one transport alone: polling brings nothing in the time of a trial."""
        self.start(
            f"rsnotify follow {SOURCE} copy --via {via} --poll 600 --allow-private-addresses "
            + options
        )
        self.copies("first")

    def kill(self, command: str) -> None:
        """Kill what was started by a command."""
        process = self._running.pop(command)
        process.ask(signal.SIGKILL)
        process.ends()

    def change_list(self) -> Document:
        with urlopen(self.url + "changelist.xml") as response:
            return read_document(response.read())

    def records(self, name: str) -> None:
        """Wait until the last change is that of a resource."""
        uri = self.url + name
        eventually(lambda: [one.uri for one in self.change_list().resources[-1:]] == [uri])

    def survives(self, fails: Callable[[], object], returns: Callable[[], object]) -> None:
        """See that each change arrives: before other software fails, meanwhile, and after it."""
        for round_ in range(2):
            self.put("one.txt", f"before {round_}")
            self.put("two.txt", f"deleted {round_}")
            self.copies(f"before {round_}")
            self.copies(f"deleted {round_}")
            fails()
            self.put("one.txt", f"meanwhile {round_}")
            (self.folder / "data/two.txt").unlink()
            returns()
            self.copies(f"meanwhile {round_}")
            self.loses(f"deleted {round_}")
            self.put("three.txt", f"after {round_}")
            self.copies(f"after {round_}")

    def ends_in_step(self, count: int = 3) -> None:
        command = f"rsnotify audit {SOURCE} copy --allow-private-addresses"
        eventually(lambda: f"in step: {count} resources" in self.run(command))
        self.end()


class Background:
    """An event loop in a thread, for servers whose output is read there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def close(self, *servers: LoggingServer) -> None:
        for server in servers:
            self(server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
