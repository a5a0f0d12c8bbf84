"""The checks on a publication that all transports share: permission, size and content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rsnotify.format.datetimes import Instant
from rsnotify.format.reader import DocumentLimits
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.config.configuration import IntakeConfig
from rsnotify_hub.fragments.content import read_content
from rsnotify_hub.fragments.fragment import Fragment, read_fragment

#: Fragments of more bytes are read in a thread, so that the event loop is not blocked.
_MAX_INLINE_BYTES = 64 * 1024


def limits_of(config: IntakeConfig) -> DocumentLimits:
    """Return the limits of what is published."""
    return DocumentLimits(document_bytes=config.max_fragment_bytes, links=config.max_links)


class FragmentIntake:
    def __init__(
        self, authorizer: Authorizer, config: IntakeConfig, clock: Callable[[], Instant]
    ) -> None:
        self.authorizer = authorizer
        self.max_bytes = config.max_fragment_bytes
        self.request_seconds = config.request_seconds
        self._clock = clock
        self._limits = limits_of(config)

    def is_small(self, body: bytes) -> bool:
        """Return whether a fragment may be read without a thread (`read_now`)."""
        return len(body) <= _MAX_INLINE_BYTES

    def read_now(self, body: bytes) -> Fragment:
        """Read and check a fragment."""
        return read_fragment(body, limits=self._limits)

    async def read(self, body: bytes) -> Fragment:
        return await self._run(partial(self.read_now, body), body)

    async def read_content(self, body: bytes, content_type: str) -> Fragment:
        """Read and check a fragment, or the whole content of a topic."""
        read = partial(
            read_content,
            body,
            content_type=content_type,
            received=self._clock(),
            limits=self._limits,
        )
        return await self._run(read, body)

    async def _run(self, read: Callable[[], Fragment], body: bytes) -> Fragment:
        return read() if self.is_small(body) else await asyncio.to_thread(read)
