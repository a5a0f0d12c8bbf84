"""How many subscriptions and requests there may be, so that nobody uses up the others' room."""

from __future__ import annotations

from collections import Counter

from rsnotify_hub.access.clients import client_network, is_loopback
from rsnotify_hub.config.configuration import WebSubConfig
from rsnotify_hub.urls import host_of
from rsnotify_hub.websub.forms import Intent
from rsnotify_hub.websub.register import Register

#: How many requests are verified at once: in all, and of one callback host or one client.
MAX_PENDING = 2000
PENDING_SHARE = 200


def client_of(address: str | None) -> str:
    """Return whose share of the room a request takes: nobody's, if it is from this machine."""
    return "" if address is None or is_loopback(address) else client_network(address)


#: What a request is counted as while it is pending: in all, and as its host's and its client's;
#: and likewise as what becomes a subscription.
Held = tuple[tuple[str, str], ...]


class Room:
    """Counts the requests that are pending, and decides whether one more may be.

    Args:
        register: The subscriptions there are.
        configuration: How many there may be.
    """

    def __init__(self, register: Register, configuration: WebSubConfig) -> None:
        self._register = register
        self._in_all = configuration.max_subscriptions
        self._per_host = configuration.subscriptions_per_host
        self._per_client = configuration.subscriptions_per_client
        self._pending: Counter[tuple[str, str]] = Counter()

    def refusal(self, intent: Intent, client: str) -> str | None:
        """Say why a request cannot be taken now; None when it can.

        Args:
            intent: What is asked for.
            client: Who asks; the empty string for this machine, which has no share.
        """
        host = host_of(intent.callback)
        hosts, clients = self._pending["host", host], self._pending["client", client]
        if self._pending["", ""] >= MAX_PENDING:
            return "too many requests are being verified"
        if hosts >= PENDING_SHARE or (client and clients >= PENDING_SHARE):
            return "too many requests of this callback's host, or of yours, are being verified"
        return self._refusal_of_new(host, client) if self._is_new(intent) else None

    def _refusal_of_new(self, host: str, client: str) -> str | None:
        if len(self._register) + self._pending["new", ""] >= self._in_all:
            return "there are too many subscriptions at this hub"
        if self._register.count_host(host) + self._pending["new host", host] >= self._per_host:
            return "there are too many subscriptions of this callback's host"
        asked = self._register.count_client(client) + self._pending["new client", client]
        if client and asked >= self._per_client:
            return "there are too many subscriptions that you asked for"
        return None

    def _is_new(self, intent: Intent) -> bool:
        known = self._register.find(intent.topic, intent.callback) is not None
        return intent.mode == "subscribe" and not known

    def take(self, intent: Intent, client: str) -> Held:
        """Count a request that is pending from now on. Return what to `leave`."""
        host = host_of(intent.callback)
        held: Held = ("", ""), ("host", host), ("client", client)
        if self._is_new(intent):
            held += ("new", ""), ("new host", host), ("new client", client)
        self._pending.update(held)
        return held

    def leave(self, held: Held) -> None:
        """Count a request no more."""
        for name in held:
            self._pending[name] -= 1
            if not self._pending[name]:
                del self._pending[name]
