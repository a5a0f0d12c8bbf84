"""Whether documents and packages keep the rules, and `rsnotify validate`."""

from rsnotify_subscriber.validation.walk import validate

__all__ = ["validate"]
