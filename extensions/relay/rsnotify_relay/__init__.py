"""A relay, which follows a Source and publishes its copy as another Source."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_relay.relay import Relay
    from rsnotify_relay.republisher import Republisher
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_relay.relay": ("Relay",),
            "rsnotify_relay.republisher": ("Republisher",),
        },
    )

__all__ = ["Relay", "Republisher"]
