"""A transactional outbox: a change is recorded in the same transaction that makes it.

`Outbox` writes a row for each change to a table in the Source's own database, in the Source's own
transaction: both become durable, or neither does. A `Forwarder` reads the rows through an
`OutboxQueue`, records them in a `Publisher`, and deletes them.

There is no cursor. A row is found as soon as it has been committed, regardless of its number, so
the changes of a long transaction are never skipped.
"""

from rsnotify_publisher.outbox.forwarder import Forwarder, OutboxLine, OutboxQueue
from rsnotify_publisher.outbox.outbox import Outbox

__all__ = ["Forwarder", "Outbox", "OutboxLine", "OutboxQueue"]
