"""What every way in for fragments asks first: may they publish, and is it a fragment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import DocumentLimits
from rsnotify_hub.access.gate import Gate, Permission
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.log.contents import read_content
from rsnotify_hub.log.fragments import Fragment, read_fragment

#: Beyond this many bytes a fragment is read in a thread, so that the others do not wait.
_READ_AT_ONCE = 64 * 1024


class FragmentIntake:
    """Checks publishers and their fragments.

    Args:
        gate: Says who may publish.
        configuration: How large a fragment may be.
        clock: Tells the current instant.
    """

    def __init__(
        self, gate: Gate, configuration: HubConfiguration, clock: Callable[[], Instant]
    ) -> None:
        self._gate = gate
        self._clock = clock
        self._limits = DocumentLimits(
            document_bytes=configuration.max_fragment_bytes, links=configuration.max_links
        )

    def check_publisher(self, request: web.Request, topic: str) -> Permission:
        """Check that a request may publish on a topic (`Gate.check_publisher`).

        Raises:
            Refusal: It may not.
        """
        return self._gate.check_publisher(request, topic)

    def check_ping(self, request: web.Request, topic: str) -> None:
        """Check that a request may have a topic fetched.

        Raises:
            Refusal: It may not.
        """
        self._gate.check_ping(request, topic)

    def is_served(self, topic: str) -> bool:
        """Tell whether somebody may publish on a topic."""
        return self._gate.is_served(topic)

    async def read(self, body: bytes, content_type: str = "application/xml") -> Fragment:
        """Read and check a fragment.

        Raises:
            DocumentError: It is not a fragment, or one that would make a Destination wrong.
        """
        return await self._run(
            partial(read_fragment, body, content_type=content_type, limits=self._limits), body
        )

    async def read_content(self, body: bytes, content_type: str) -> Fragment:
        """Read and check a fragment, or the whole content of a topic.

        Raises:
            DocumentError: As for `rsnotify_hub.log.contents.read_content`.
        """
        read = partial(
            read_content,
            body,
            content_type=content_type,
            received=self._clock(),
            limits=self._limits,
        )
        return await self._run(read, body)

    async def _run(self, read: Callable[[], Fragment], body: bytes) -> Fragment:
        return read() if len(body) <= _READ_AT_ONCE else await asyncio.to_thread(read)
