"""The requests that the hub makes to callbacks: to verify, to deny, and to deliver.

A callback is a stranger's: it is never followed to another place, little of its answer is
read, and what is logged of it is its host, since its query may hold a secret.
"""

from __future__ import annotations

import logging

import aiohttp

from rsnotify.links import format_links
from rsnotify.vocabulary import Rel
from rsnotify_hub.client import exactly, reason_of
from rsnotify_hub.subscriptions import Answer, Subscription, judge, signature
from rsnotify_hub.websub.forms import host_of

log = logging.getLogger("rsnotify.hub.websub")

_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class Callbacks:
    """The requests to callbacks.

    Args:
        client: The guarded HTTP client.
        hub_url: This hub's `/websub`, for Link headers.
    """

    def __init__(self, client: aiohttp.ClientSession, hub_url: str) -> None:
        self._client = client
        self._hub_url = hub_url

    async def deliver(self, subscription: Subscription, body: bytes, content_type: str) -> Answer:
        """POST a fragment (WebSub §7).

        Args:
            subscription: Whose callback, and what to sign with.
            body: The fragment.
            content_type: What it is.
        """
        links = [(Rel.SELF, subscription.topic), (Rel.HUB, self._hub_url)]
        headers = {"Content-Type": content_type, "Link": format_links(links)}
        if subscription.secret is not None:
            headers["X-Hub-Signature"] = signature(subscription.secret, body)
        url = exactly(subscription.callback)
        try:
            async with self._client.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                status = response.status
        except _FAILURES as error:
            self._log_failure(subscription.callback, error)
            return Answer.RETRY
        answer = judge(status)
        if answer is Answer.RETRY:
            log.warning("the callback at %s answers %s", host_of(subscription.callback), status)
        return answer

    async def ask(self, url: str, *, limit: int) -> bytes | None:
        """GET a callback with a query.

        Args:
            url: The callback and the query.
            limit: How many bytes of the answer matter.

        Returns:
            The answer's body, cut one byte beyond the limit; None unless it was a 2xx.
        """
        try:
            async with self._client.get(exactly(url), allow_redirects=False) as response:
                if not 200 <= response.status < 300:
                    log.warning("the callback at %s answers %s", host_of(url), response.status)
                    return None
                body = b""
                async for chunk in response.content.iter_chunked(limit + 1):
                    body += chunk
                    if len(body) > limit:
                        break
                return body[: limit + 1]
        except _FAILURES as error:
            self._log_failure(url, error)
            return None

    def _log_failure(self, url: str, error: Exception) -> None:
        log.warning("the callback at %s cannot be reached: %s", host_of(url), reason_of(error))
