"""An application with invenio-oaiserver; it runs in an environment with the packages of Invenio.

Its records are in documents.json, and each has a page.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections import namedtuple
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Flask, request
from invenio_db import InvenioDB, db
from invenio_i18n import InvenioI18N
from invenio_oaiserver import InvenioOAIServer
from invenio_oaiserver.views.server import blueprint
from invenio_pidstore import InvenioPIDStore
from invenio_pidstore.errors import PIDDoesNotExistError
from invenio_pidstore.models import PersistentIdentifier, PIDStatus
from invenio_records import InvenioRecords
from invenio_search import InvenioSearch
from lxml import etree

DOCUMENTS = Path("documents.json")
PREFIX = "oai:rdm.example:"
Identifier = namedtuple("Identifier", "provider pid_type pid_value")


def load() -> dict[str, Any]:
    return json.loads(DOCUMENTS.read_text()) if DOCUMENTS.exists() else {}


def dublin_core(_: Any, record: dict[str, Any]) -> Any:
    root = etree.Element("{http://www.openarchives.org/OAI/2.0/oai_dc/}dc")
    title = etree.SubElement(root, "{http://purl.org/dc/elements/1.1/}title")
    title.text = record["_source"]["title"]
    return root


def record_of(number: Any) -> dict[str, Any]:
    found = load().get(str(number))
    if found is None:
        raise PIDDoesNotExistError("oai", None)
    return {**found, "updated": datetime.fromisoformat(found["updated"])}


port, search = map(int, sys.argv[1:])
app = Flask("site")
app.config.update(
    SQLALCHEMY_DATABASE_URI=f"sqlite:///{Path('site.sqlite3').resolve()}",
    SECRET_KEY="only for this trial",
    SERVER_NAME=f"127.0.0.1:{port}",
    SEARCH_HOSTS=[{"host": "127.0.0.1", "port": search}],
    OAISERVER_ID_PREFIX=PREFIX,
    OAISERVER_RECORD_INDEX="records",
    OAISERVER_REPOSITORY_NAME="Trial",
    OAISERVER_LAST_UPDATE_KEY="updated",
    OAISERVER_CREATED_KEY="created",
    OAISERVER_REGISTER_RECORD_SIGNALS=False,
    OAISERVER_REGISTER_SET_SIGNALS=False,
    OAISERVER_PAGE_SIZE=3,
    OAISERVER_ID_FETCHER=lambda _, record: Identifier(None, "oai", PREFIX + record["name"]),
    OAISERVER_GETRECORD_FETCHER=record_of,
    OAISERVER_RECORD_SETS_FETCHER=lambda record: [],
    OAISERVER_METADATA_FORMATS={
        "oai_dc": {
            "serializer": dublin_core,
            "schema": "http://www.openarchives.org/OAI/2.0/oai_dc.xsd",
            "namespace": "http://www.openarchives.org/OAI/2.0/oai_dc/",
        }
    },
)
for extension in (InvenioDB, InvenioI18N, InvenioPIDStore, InvenioRecords, InvenioSearch):
    extension(app)
InvenioOAIServer(app)
app.register_blueprint(blueprint)


@app.route("/api/records/<name>", methods=["GET", "PUT", "DELETE"])
def record(name: str) -> Any:
    documents = load()
    now = datetime.now(UTC).isoformat()
    number = next((key for key, one in documents.items() if one["name"] == name), None)
    if request.method == "PUT":
        if number is None:
            number = str(uuid.uuid4())
            PersistentIdentifier.create(
                "oai",
                PREFIX + name,
                object_type="rec",
                object_uuid=number,
                status=PIDStatus.REGISTERED,
            )
            db.session.commit()
        created = documents.get(number, {}).get("created", now)
        title = request.get_json()["title"]
        documents[number] = {"name": name, "title": title, "updated": now, "created": created}
    elif number is None:
        return {"message": "The persistent identifier does not exist."}, 404
    found = documents.pop(number) if request.method == "DELETE" else documents[number]
    DOCUMENTS.write_text(json.dumps(documents))
    return found


if __name__ == "__main__":
    with app.app_context():
        db.create_all()
    app.run(port=port, threaded=True)
