"""A real MQTT broker on loopback, which can go away and come back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ports import free_port

#: Seconds; only what hangs takes them.
PATIENCE = 60
#: Where Debian keeps servers, too.
PATH = f"{os.environ['PATH']}:/usr/sbin"


class Mosquitto:
    """A broker; an async context manager that starts and stops it.

    Args:
        folder: Where it keeps everything.
        users: Passwords by user; none, then everybody is let in.
        acl: Who may do what, as mosquitto's `acl_file` has it.
        settings: More lines for the listener.
        websocket: Whether it speaks MQTT over WebSocket, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        acl: str | None = None,
        settings: str = "",
        websocket: bool = False,
    ) -> None:
        if shutil.which("mosquitto", path=PATH) is None:
            pytest.skip("mosquitto is not installed")
        self.port = free_port()
        self.websocket_port = free_port() if websocket else None
        self.lines: list[str] = []
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._running = asyncio.Event()
        self._news = asyncio.Event()
        folder.mkdir(parents=True, exist_ok=True)
        parts = [
            f"listener {self.port} 127.0.0.1",
            settings,
            # mosquitto 2.0.11 does not start with this listener alone.
            f"listener {self.websocket_port} 127.0.0.1\nprotocol websockets" if websocket else "",
            f"allow_anonymous {'false' if users else 'true'}",
            self._passwords(users) if users else "",
            self._acl(acl) if acl is not None else "",
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1",
            "autosave_on_changes true\nlog_dest stderr\nlog_type all",
            # Started by root, it would change to a user without write access here.
            "user root" if os.getuid() == 0 else "",
        ]
        (folder / "mosquitto.conf").write_text("\n".join(part for part in parts if part) + "\n")

    def _passwords(self, users: Mapping[str, str]) -> str:
        path = self._folder / "passwords"
        path.write_text("".join(f"{user}:{password}\n" for user, password in users.items()))
        path.chmod(0o600)
        subprocess.run(["mosquitto_passwd", "-U", path], check=True, env={"PATH": PATH})
        return f"password_file {path}"

    def _acl(self, acl: str) -> str:
        path = self._folder / "acl"
        path.write_text(acl)
        path.chmod(0o600)
        return f"acl_file {path}"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Mosquitto:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._running.clear()
        self._process = await asyncio.create_subprocess_exec(
            *("mosquitto", "-c", self._folder / "mosquitto.conf"),
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": PATH},
        )
        self._reading = asyncio.create_task(self._read(self._process))
        async with asyncio.timeout(PATIENCE):
            await self._running.wait()
        assert self._process.returncode is None, self.lines

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip())
            self._news.set()
            if self.lines[-1].endswith(" running"):
                self._running.set()
        self._running.set()

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: in order, so that it keeps what it has, or by SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            await self._end(self._process, how)
        if self._reading is not None:
            await self._reading

    async def _end(self, process: asyncio.subprocess.Process, how: signal.Signals) -> None:
        for _ in range(PATIENCE):
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            # One that has only just said that it is running loses a signal.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await process.wait()
                    return
        raise AssertionError("mosquitto does not end")

    def count(self, text: str) -> int:
        """Count the lines of its log that have this text."""
        return sum(text in line for line in self.lines)

    async def news(self) -> None:
        self._news.clear()
        await self._news.wait()

    def reload(self) -> None:
        """Let it read passwords and ACL anew."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
