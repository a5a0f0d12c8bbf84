"""Is a copy what the Source says?"""

from rsnotify_subscriber.auditing.auditor import Audit, audit

__all__ = ["Audit", "audit"]
