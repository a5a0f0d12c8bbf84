"""Fragments delivered to a callback of ours (WebSub, W3C REC 2018-01-23)."""

from rsnotify_subscriber.push.websub.callbacks import Callbacks
from rsnotify_subscriber.push.websub.listener import listening
from rsnotify_subscriber.push.websub.terms import WebSubTerms

__all__ = ["Callbacks", "WebSubTerms", "listening"]
