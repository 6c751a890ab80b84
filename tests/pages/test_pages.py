"""Every page in light, dark and on a phone: as its stored picture, readable, and no wider than the window."""

import os
import pathlib

import pytest
from PIL import Image

from tests.pages.browser import missing, started
from tests.pages.pictures import VIEWS, difference, reduced, show, stored
from tests.pages.samples import PAGES

pytestmark = pytest.mark.pages

FACTS = pathlib.Path(__file__).with_name("facts.js").read_text(encoding="utf-8")
every = pytest.mark.parametrize(("page", "view"), [(page, view) for page in PAGES for view in VIEWS])


@pytest.fixture(scope="module")
def browser():
    if lacking := missing():
        if os.environ.get("CI"):
            pytest.fail(f"{lacking} is not installed; CI needs it")
        pytest.skip(f"{lacking} is not installed")
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@every
def test_a_page_looks_as_stored(browser, folder, page, view):
    show(browser, page, view, folder)
    picture = browser.picture()
    words = difference(reduced(picture), stored(page, view))
    if words:
        path = folder / f"{page}-{view}.png"
        Image.fromarray(picture).save(path)
        pytest.fail(f"{words}: see {path}; if it is right, python -m tests.pages.pictures --renew")


@every
def test_a_page_fits_its_window_and_can_be_read(browser, folder, page, view):
    show(browser, page, view, folder)
    facts = browser.evaluate(FACTS)
    width, _ = VIEWS[view]
    assert facts.pop("width") == [width, width]
    assert len(facts.pop("headings")) >= 4
    assert facts == {"wide": [], "empty": [], "small": [], "narrow": [], "faint": []}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sections[2].remove()", "taller"),
        ("sections[2].style.visibility = 'hidden'", "of the blocks differ"),
        ("document.querySelector('svg[aria-label^=Timeline]').style.visibility = 'hidden'", "of the blocks differ"),
        ("sections[0].before(sections[1])", "of the blocks differ"),
        ("document.body.style.background = '#ddeeff'", "of the blocks differ"),
    ],
)
def test_a_page_on_which_something_is_missing_does_not_look_as_stored(browser, folder, script, words):
    show(browser, "run", "light", folder)
    browser.evaluate(f"(() => {{ const sections = document.querySelectorAll('section'); {script}; }})()")
    assert words in difference(reduced(browser.picture()), stored("run", "light"))


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ("<div style='width:1300px;height:20px'>far</div>", "wide"),
        ("<figure class='panel' style='padding:0;border:0'></figure>", "empty"),
        ("<p style='color:#999'>pale</p>", "faint"),
        ("<p style='opacity:.4'>pale</p>", "faint"),
        ("<div style='background:#15181c;width:99px'><p style='color:#333'>dark</p></div>", "faint"),
        (
            "<svg role='img' width='90' height='40'><rect width='90' height='40' fill='#224'/>"
            "<text x='5' y='20' fill='#555'>bar</text></svg>",
            "faint",
        ),
        ("<svg role='img' width='90' height='40'><text x='5' y='20' font-size='5'>tiny</text></svg>", "small"),
        ("<table><tr><td style='width:20px'>one word a line and many lines</td></tr></table>", "narrow"),
    ],
)
def test_faults_of_a_layout_are_found(browser, folder, html, fault):
    show(browser, "plan", "light", folder)
    browser.evaluate(f"document.body.insertAdjacentHTML('beforeend', {html!r})")
    facts = browser.evaluate(FACTS)
    assert [name for name in ("wide", "empty", "faint", "small", "narrow") if facts[name]] == [fault]
