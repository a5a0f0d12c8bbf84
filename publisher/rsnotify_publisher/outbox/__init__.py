"""A transactional outbox: a change is recorded in the transaction that makes it.

`Outbox` writes a line for each change into a table of the Source's own database, in the Source's
own transaction: both become durable, or neither does. A `Forwarder` takes the lines out of it, by
way of a queue, and records them in a `Publisher`.

Nothing remembers how far one has read. What is forwarded is deleted, and what is committed later
is found then, whatever its number: so a transaction that takes long is never passed over.
"""

from rsnotify_publisher.outbox.forwarder import Forwarder
from rsnotify_publisher.outbox.outbox import Outbox
from rsnotify_publisher.outbox.queue import OutboxLine, OutboxQueue

__all__ = ["Forwarder", "Outbox", "OutboxLine", "OutboxQueue"]
