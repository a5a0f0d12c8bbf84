"""Replaces the grants without a restart when a settings file changes."""

from __future__ import annotations

import asyncio
import logging

from rsnotify.errors import ConfigurationError
from rsnotify.runtime.config.files import FileWatch
from rsnotify_hub.access.authorization import Authorizer
from rsnotify_hub.access.grants import grants_of
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.config.loading import ConfigurationSource

log = logging.getLogger("rsnotify.hub.access")


class GrantReloader:
    def __init__(
        self, authorizer: Authorizer, source: ConfigurationSource, configuration: HubConfiguration
    ) -> None:
        self._authorizer = authorizer
        self._source = source
        self._configuration = configuration
        self._watch = FileWatch(source.files(configuration))

    async def run(self) -> None:
        while self._watch.files:
            await self._watch.changed()
            await self._reload()

    async def _reload(self) -> None:
        try:
            configuration = await asyncio.to_thread(self._source.load)
        except ConfigurationError as error:
            log.error("the grants stay as they are: %s", error)
            return
        except Exception:
            log.exception("the grants stay as they are")
            return
        if configuration != self._configuration:
            self._replace_grants(configuration)

    def _replace_grants(self, configuration: HubConfiguration) -> None:
        self._configuration = configuration
        # Removing the last token must not open the hub to everybody.
        present = self._authorizer.grants
        grants = grants_of(configuration, anonymous=present.anonymous)
        grants.own = present.own
        self._authorizer.grants = grants
        self._watch.watch(self._source.files(configuration))
        log.info("the grants were reloaded")
