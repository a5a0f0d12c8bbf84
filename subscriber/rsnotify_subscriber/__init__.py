"""The Destination's library: keeps a copy of a Source's resources synchronized."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_subscriber.auditing.auditor import Audit, audit
    from rsnotify_subscriber.auditing.repair import Repair, repair
    from rsnotify_subscriber.fetching.credentials import Credentials
    from rsnotify_subscriber.fleet import Fleet, Limits
    from rsnotify_subscriber.handlers import (
        BlockingHandler,
        Handler,
        PerChangeHandler,
        ReadableHandler,
        Received,
        TransactionalHandler,
    )
    from rsnotify_subscriber.mirror import FolderMirror, default_state
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.patching import Patch, PatchError
    from rsnotify_subscriber.push.mqtt import MqttOptions
    from rsnotify_subscriber.push.websub.callbacks import Callbacks
    from rsnotify_subscriber.push.websub.listener import listening
    from rsnotify_subscriber.push.websub.terms import WebSubTerms
    from rsnotify_subscriber.status import PushState, Status
    from rsnotify_subscriber.subscriber import Subscriber
    from rsnotify_subscriber.via import Via
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_subscriber.auditing.auditor": ("Audit", "audit"),
            "rsnotify_subscriber.auditing.repair": ("Repair", "repair"),
            "rsnotify_subscriber.fetching.credentials": ("Credentials",),
            "rsnotify_subscriber.fleet": ("Fleet", "Limits"),
            "rsnotify_subscriber.mirror": ("FolderMirror", "default_state"),
            "rsnotify_subscriber.options": ("FollowOptions",),
            "rsnotify_subscriber.patching": ("Patch", "PatchError"),
            "rsnotify_subscriber.via": ("Via",),
            "rsnotify_subscriber.push.mqtt": ("MqttOptions",),
            "rsnotify_subscriber.push.websub.callbacks": ("Callbacks",),
            "rsnotify_subscriber.push.websub.listener": ("listening",),
            "rsnotify_subscriber.push.websub.terms": ("WebSubTerms",),
            "rsnotify_subscriber.handlers": (
                "BlockingHandler",
                "PerChangeHandler",
                "Handler",
                "ReadableHandler",
                "Received",
                "TransactionalHandler",
            ),
            "rsnotify_subscriber.status": ("PushState", "Status"),
            "rsnotify_subscriber.subscriber": ("Subscriber",),
        },
    )

__all__ = [
    "Audit",
    "BlockingHandler",
    "Callbacks",
    "Credentials",
    "Fleet",
    "FolderMirror",
    "FollowOptions",
    "Handler",
    "Limits",
    "MqttOptions",
    "Patch",
    "PatchError",
    "PerChangeHandler",
    "PushState",
    "ReadableHandler",
    "Received",
    "Repair",
    "Status",
    "Subscriber",
    "TransactionalHandler",
    "Via",
    "WebSubTerms",
    "audit",
    "default_state",
    "listening",
    "repair",
]
