from __future__ import annotations

from tests.hub.conftest import clock, run_hub, watch
from tests.security.network import network
from tests.subscriber.conftest import destination, source

__all__ = ["clock", "destination", "network", "run_hub", "source", "watch"]
