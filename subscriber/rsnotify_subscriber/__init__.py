"""The Destination's library: keep copies of a Source's resources in step with it."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify_subscriber.auditing.auditor import Audit, audit
    from rsnotify_subscriber.fetching.credentials import Credentials
    from rsnotify_subscriber.fleet import Fleet, Limits
    from rsnotify_subscriber.mirror import FolderMirror, default_state
    from rsnotify_subscriber.patching import Patch, PatchError
    from rsnotify_subscriber.push.choosing import Via
    from rsnotify_subscriber.push.mqtt import Brokered
    from rsnotify_subscriber.push.websub.callbacks import Callbacks
    from rsnotify_subscriber.push.websub.listener import listening
    from rsnotify_subscriber.push.websub.terms import WebSubTerms
    from rsnotify_subscriber.received import Blocking, Each, Handler, Holding, Received, Within
    from rsnotify_subscriber.status import PushState, Status
    from rsnotify_subscriber.subscriber import Subscriber
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify_subscriber.auditing.auditor": ("Audit", "audit"),
            "rsnotify_subscriber.fetching.credentials": ("Credentials",),
            "rsnotify_subscriber.fleet": ("Fleet", "Limits"),
            "rsnotify_subscriber.mirror": ("FolderMirror", "default_state"),
            "rsnotify_subscriber.patching": ("Patch", "PatchError"),
            "rsnotify_subscriber.push.choosing": ("Via",),
            "rsnotify_subscriber.push.mqtt": ("Brokered",),
            "rsnotify_subscriber.push.websub.callbacks": ("Callbacks",),
            "rsnotify_subscriber.push.websub.listener": ("listening",),
            "rsnotify_subscriber.push.websub.terms": ("WebSubTerms",),
            "rsnotify_subscriber.received": (
                "Blocking",
                "Each",
                "Handler",
                "Holding",
                "Received",
                "Within",
            ),
            "rsnotify_subscriber.status": ("PushState", "Status"),
            "rsnotify_subscriber.subscriber": ("Subscriber",),
        },
    )

__all__ = [
    "Audit",
    "Blocking",
    "Brokered",
    "Callbacks",
    "Credentials",
    "Each",
    "Fleet",
    "FolderMirror",
    "Handler",
    "Holding",
    "Limits",
    "Patch",
    "PatchError",
    "PushState",
    "Received",
    "Status",
    "Subscriber",
    "Via",
    "WebSubTerms",
    "Within",
    "audit",
    "default_state",
    "listening",
]
