"""The recipe for Wagtail, with Wagtail: needs `pip install wagtail`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reader import ROOT, lines_of
from tests.recipes.trial import Trial, block

pytestmark = pytest.mark.slow

PAGE = "wagtail.md"
#: Each is run by `manage.py shell`, as an editor would in the admin site.
HOME = (
    "from home.models import HomePage as P; from wagtail.models import *; h = P.objects.first(); "
)
PAGE_OF = HOME + "p = P.objects.get(title='Hills'); "


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    pytest.importorskip("wagtail", reason="Wagtail is missing: pip install wagtail")
    environment = {"PYTHONPATH": str(ROOT)}
    with Trial(tmp_path / "here", {}, environment=environment) as trial:
        yield trial


def test_an_app_publishes_the_pages(trial: Trial):
    trial.do_once(f"{shlex.quote(sys.executable)} -m wagtail.bin.wagtail start project .")
    trial.do_once("python manage.py startapp publishing")
    trial.do_once("mkdir -p publishing/management/commands")
    for name in ("publishing/models.py", "publishing/management/commands/compare_pages.py"):
        trial.write(name, block(PAGE, f"# {name}"))
    settings = trial.folder / "project/settings/base.py"
    settings.write_text(settings.read_text() + block(PAGE, "# project/settings/base.py"))
    trial.write("project/wsgi.py", block(PAGE, "# project/wsgi.py"))
    migrate, fill, locate, compare, serve, _, follow = lines_of(block(PAGE, "makemigrations"))
    trial.do_once(migrate)
    trial.do_once(fill)
    trial.do_once(locate)
    trial.do_once(compare)
    trial.start(serve, re.compile("Listening at"))
    trial.start(follow)
    trial.copies("Welcome to your new Wagtail site!")

    run(trial, HOME + "p = h.add_child(instance=P(title='Hills', live=False))")
    run(trial, PAGE_OF + "p.save_revision().publish()")
    trial.copies("<title>\n            \n            Hills")
    run(trial, PAGE_OF + "p.seo_title = 'High hills'; p.save_revision().publish()")
    trial.copies("High hills")
    run(trial, PAGE_OF + "PageViewRestriction.objects.create(page=p, restriction_type='login')")
    trial.loses("High hills")
    run(trial, PAGE_OF + "p.view_restrictions.all().delete()")
    trial.copies("High hills")
    run(trial, PAGE_OF + "p.slug = 'valleys'; p.save_revision().publish()")
    trial.has("valleys")
    trial.lacks("hills")
    run(trial, PAGE_OF + "p.unpublish()")
    trial.loses("High hills")
    run(trial, PAGE_OF + "p.save_revision().publish()")
    trial.copies("High hills")
    run(trial, PAGE_OF + "P.objects.filter(pk=p.pk).update(live=False)")
    trial.do_once(compare)
    trial.loses("High hills")
    run(trial, PAGE_OF + "p.save_revision().publish()")
    trial.copies("High hills")
    run(trial, PAGE_OF + "p.delete()")
    trial.loses("High hills")
    trial.do_once("rsnotify validate http://127.0.0.1:8000/")
    trial.end()


def run(trial: Trial, code: str) -> None:
    trial.do_once(f"python manage.py shell -c {shlex.quote(code)}")
