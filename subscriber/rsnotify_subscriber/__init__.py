"""The Destination's library: keep copies of a Source's resources in step with it."""

from rsnotify_subscriber.auditing import Audit, audit
from rsnotify_subscriber.fetching.credentials import Credentials
from rsnotify_subscriber.fleet import Fleet, Limits
from rsnotify_subscriber.mirror import FolderMirror, default_state
from rsnotify_subscriber.patching import Patch, PatchError
from rsnotify_subscriber.push.choosing import Via
from rsnotify_subscriber.push.mqtt import Brokered
from rsnotify_subscriber.push.websub import Callbacks, WebSubTerms, listening
from rsnotify_subscriber.received import Blocking, Each, Handler, Holding, Received, Within
from rsnotify_subscriber.status import PushState, Status
from rsnotify_subscriber.subscriber import Subscriber

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
