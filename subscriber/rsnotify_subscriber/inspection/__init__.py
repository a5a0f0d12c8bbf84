"""What a Source offers, and `rsnotify inspect`."""

from rsnotify_subscriber.inspection.walk import inspect

__all__ = ["inspect"]
