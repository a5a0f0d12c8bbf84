"""How often one client may do what costs something: token buckets, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from rsnotify_hub.access.clients import client_network, is_loopback
from rsnotify_hub.config.configuration import HubConfiguration
from rsnotify_hub.refusals import Code, Refusal

#: How many seconds' worth may come at once.
_BURST_SECONDS = 10.0

#: How many clients are remembered; of more, the longest quiet are forgotten.
_CLIENTS = 10_000


class RateLimiter:
    """A rate that no client may exceed for long. What this machine sends itself is not counted.

    Args:
        rate: How often a second.
        what: What is too often then, for the reason.
        now: Tells the time in seconds.
        clients: How many are remembered.
    """

    def __init__(
        self,
        rate: float,
        what: str,
        *,
        now: Callable[[], float] = monotonic,
        clients: int = _CLIENTS,
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * _BURST_SECONDS)
        self._what = what
        self._now = now
        self._clients = clients
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, address: str | None) -> None:
        """Count one more.

        Args:
            address: The client's.

        Raises:
            Refusal: It is one too many; it was not counted.
        """
        if address is None or is_loopback(address):
            return
        client, now = client_network(address), self._now()
        spent, before = self._spent.get(client, (0.0, now))
        spent = max(0.0, spent - (now - before) * self._rate)
        if spent + 1 > self._burst:
            raise Refusal(Code.TOO_MANY, f"too many {self._what}; come back later")
        self._spent[client] = (spent + 1, now)
        self._spent.move_to_end(client)
        if len(self._spent) > self._clients:
            self._spent.popitem(last=False)


class RateLimits:
    """The limits of one hub.

    Args:
        configuration: The rates.

    Attributes:
        subscriptions: Of requests to subscribe and unsubscribe.
        pings: Of open topics that are pinged.
        connections: Of WebSockets that are opened.
        tokens: Of tokens that grant nothing.
    """

    def __init__(self, configuration: HubConfiguration) -> None:
        self.subscriptions = RateLimiter(configuration.subscription_rate, "requests to subscribe")
        self.pings = RateLimiter(configuration.subscription_rate, "pings")
        self.connections = RateLimiter(configuration.connection_rate, "connections")
        self.tokens = RateLimiter(configuration.failed_token_rate, "tokens that grant nothing")
