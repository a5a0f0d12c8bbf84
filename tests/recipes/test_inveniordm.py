"""The recipe for InvenioRDM, with the OAI-PMH server of Invenio, and without OpenSearch.

It needs `invenio` on PATH, in an environment with `invenio-oaiserver`, `invenio-records`,
`invenio-i18n` and `invenio-search[opensearch2]`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.ports import free_port
from tests.publisher.helpers import eventually
from tests.recipes.trial import Trial, get, needs, running

pytestmark = pytest.mark.slow

PAGE = "inveniordm.md"
PROGRAMS = Path(__file__).parent / "invenio"


class Invenio:
    """A site, whose records are changed by requests."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        found = shutil.which("invenio")
        assert found is not None
        python = str(Path(found).with_name("python"))
        port, search = str(free_port()), str(free_port())
        self.url = f"http://127.0.0.1:{port}"
        stack.enter_context(running(folder, sys.executable, str(PROGRAMS / "search.py"), search))
        stack.enter_context(running(folder, python, str(PROGRAMS / "site.py"), port, search))
        eventually(self._answers)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/oai2d?verb=Identify", timeout=60) as response:
                return b"deletedRecord" in response.read()
        except (URLError, OSError):
            return False

    def put(self, name: str, title: str) -> None:
        get(f"{self.url}/api/records/{name}", {"title": title}, "PUT")

    def delete(self, name: str) -> None:
        get(f"{self.url}/api/records/{name}", method="DELETE")


@pytest.fixture
def invenio(tmp_path: Path) -> Iterator[Invenio]:
    needs("invenio", packages="python3-venv, and pip install invenio-oaiserver")
    with ExitStack() as stack:
        folder = tmp_path / "invenio"
        folder.mkdir()
        yield Invenio(folder, stack)


def test_a_gateway_harvests_the_records(tmp_path: Path, invenio: Invenio):
    for number in range(7):  # more than two pages
        invenio.put(f"first{number}", f"There from the beginning {number}")
    with Trial(tmp_path / "here", {"https://rdm.example": invenio.url}) as trial:
        trial.gateway(PAGE, compare=2)
        trial.follow("https://push.example/records/")
        for number in range(7):
            trial.copies(f"There from the beginning {number}")
        invenio.put("hills", "A first version")
        trial.copies("A first version")
        invenio.put("hills", "Another version")
        trial.copies("Another version")
        invenio.delete("hills")
        trial.loses("Another version")
        assert trial.origin("records")["problem"] is None
        trial.end()
