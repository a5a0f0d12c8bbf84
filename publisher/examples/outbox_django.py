"""Django: a document and its change are committed together, or not at all.

    python publisher/examples/outbox_django.py postgresql://localhost/example

A site needs only the view. `settings.configure` and the other setup code are here so that the
example fits into one file. It forwards the changes with an explicit call, whereas a site would run
a `Forwarder` in a management command.
"""

from __future__ import annotations

import sys
import tempfile

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from psycopg.conninfo import conninfo_to_dict

from rsnotify_publisher import Forwarder, Outbox, PostgreSQLQueue, Publisher

BASE = "https://source.example/data/"
DATABASE = sys.argv[1]
given = conninfo_to_dict(DATABASE)
server = {"NAME": given["dbname"], "HOST": given.get("host"), "PORT": given.get("port")}
default = {"ENGINE": "django.db.backends.postgresql", "USER": given.get("user"), **server}
settings.configure(DATABASES={"default": default}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
django.setup()

outbox = Outbox()


class StoredDocument(models.Model):
    """A document, published as a resource."""

    name = models.CharField(primary_key=True, max_length=50)
    body = models.TextField()

    class Meta:
        """The application to which the model belongs."""

        app_label = "example"


def put(request: HttpRequest, name: str) -> HttpResponse:
    """Store a document, and record the change in the same transaction."""
    with transaction.atomic():
        StoredDocument(name, request.body.decode()).save()
        outbox.updated(connection, BASE + name, length=len(request.body))
        if not request.body:
            raise ValueError("a document must not be empty")  # undoes both
    return HttpResponse(status=204)


urlpatterns = [path("<str:name>", put)]


def main() -> None:
    """PUT three documents, the second of which is rejected, and print the published changes."""
    from django.test import Client

    with connection.schema_editor() as editor:
        editor.create_model(StoredDocument)
        editor.execute(outbox.ddl)
    client = Client(raise_request_exception=False)
    for name, body in (("a", "one"), ("b", ""), ("a", "three")):
        status = client.put(f"/{name}", body).status_code
        print(f"PUT {name}: {status}")
    connection.close()
    with tempfile.TemporaryDirectory() as folder, Publisher(folder, BASE) as publisher:
        Forwarder(publisher, PostgreSQLQueue(DATABASE, outbox)).forward()
        with publisher.source.open_journal() as journal:
            for change in journal.changes(0):
                print(change.change, change.uri, change.length)


if __name__ == "__main__":
    main()
