"""What subscribers of one process share: connections, threads, memory."""

from rsnotify_subscriber.sharing.shared import Limits, Shared

__all__ = ["Limits", "Shared"]
