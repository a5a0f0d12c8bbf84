"""An aggregator: follows one Source, and publishes what it holds as a Source of its own."""

from rsnotify_relay.relay import Relay
from rsnotify_relay.republisher import Republisher

__all__ = ["Relay", "Republisher"]
