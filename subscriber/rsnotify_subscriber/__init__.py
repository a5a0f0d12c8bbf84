"""The Destination's library: keeps a copy of a Source's resources in sync."""

from typing import TYPE_CHECKING

from rsnotify.runtime.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from rsnotify.runtime.mqtt_broker import BrokerLogin
    from rsnotify.sync.pace import Pace
    from rsnotify.sync.retry import Retry
    from rsnotify_subscriber.auditing.auditor import Audit, audit
    from rsnotify_subscriber.auditing.repair import Repair, repair
    from rsnotify_subscriber.content.patches import Patch
    from rsnotify_subscriber.events import (
        Audited,
        BaselineBegun,
        BaselineComplete,
        Behind,
        Event,
        GapSeen,
        LevelReached,
        OfferChanged,
        Pulling,
        PushDown,
        PushUp,
    )
    from rsnotify_subscriber.fetching.credentials import Credentials
    from rsnotify_subscriber.fleet import Fleet, Limits
    from rsnotify_subscriber.handlers import (
        CheckedHandler,
        Handler,
        HeldResource,
        ReadableHandler,
        Received,
        TransactionalHandler,
    )
    from rsnotify_subscriber.metrics import FollowMetrics
    from rsnotify_subscriber.mirror import FolderMirror, default_state
    from rsnotify_subscriber.options import FollowOptions
    from rsnotify_subscriber.push.mqtt_transport import MqttOptions
    from rsnotify_subscriber.push.transport import Transport, TransportListener
    from rsnotify_subscriber.push.websub_callbacks import Callbacks, listening
    from rsnotify_subscriber.push_options import Via, WebSubTerms
    from rsnotify_subscriber.status import ActivityKind, PushState, Status, SyncActivity
    from rsnotify_subscriber.storage.postgresql import PostgreSQLState
    from rsnotify_subscriber.subscriber import Subscriber
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "rsnotify.runtime.mqtt_broker": ("BrokerLogin",),
            "rsnotify.sync.pace": ("Pace",),
            "rsnotify.sync.retry": ("Retry",),
            "rsnotify_subscriber.storage.postgresql": ("PostgreSQLState",),
            "rsnotify_subscriber.auditing.auditor": ("Audit", "audit"),
            "rsnotify_subscriber.auditing.repair": ("Repair", "repair"),
            "rsnotify_subscriber.fetching.credentials": ("Credentials",),
            "rsnotify_subscriber.fleet": ("Fleet", "Limits"),
            "rsnotify_subscriber.metrics": ("FollowMetrics",),
            "rsnotify_subscriber.mirror": ("FolderMirror", "default_state"),
            "rsnotify_subscriber.options": ("FollowOptions",),
            "rsnotify_subscriber.content.patches": ("Patch",),
            "rsnotify_subscriber.events": (
                "Audited",
                "BaselineBegun",
                "BaselineComplete",
                "Behind",
                "Event",
                "GapSeen",
                "LevelReached",
                "OfferChanged",
                "Pulling",
                "PushDown",
                "PushUp",
            ),
            "rsnotify_subscriber.push.mqtt_transport": ("MqttOptions",),
            "rsnotify_subscriber.push.transport": ("Transport", "TransportListener"),
            "rsnotify_subscriber.push_options": ("Via", "WebSubTerms"),
            "rsnotify_subscriber.push.websub_callbacks": ("Callbacks", "listening"),
            "rsnotify_subscriber.handlers": (
                "CheckedHandler",
                "Handler",
                "HeldResource",
                "ReadableHandler",
                "Received",
                "TransactionalHandler",
            ),
            "rsnotify_subscriber.status": ("ActivityKind", "PushState", "Status", "SyncActivity"),
            "rsnotify_subscriber.subscriber": ("Subscriber",),
        },
    )

__all__ = [
    "ActivityKind",
    "Audit",
    "Audited",
    "BaselineBegun",
    "BaselineComplete",
    "Behind",
    "BrokerLogin",
    "Callbacks",
    "CheckedHandler",
    "Credentials",
    "Event",
    "Fleet",
    "FolderMirror",
    "FollowMetrics",
    "FollowOptions",
    "GapSeen",
    "Handler",
    "HeldResource",
    "LevelReached",
    "Limits",
    "MqttOptions",
    "OfferChanged",
    "Pace",
    "Patch",
    "PostgreSQLState",
    "Pulling",
    "PushDown",
    "PushState",
    "PushUp",
    "ReadableHandler",
    "Received",
    "Repair",
    "Retry",
    "Status",
    "Subscriber",
    "SyncActivity",
    "TransactionalHandler",
    "Transport",
    "TransportListener",
    "Via",
    "WebSubTerms",
    "audit",
    "default_state",
    "listening",
    "repair",
]
