"""The audit's gallery in a real browser: a thousand samples, two widths, by keyboard, and nothing from the network."""

from __future__ import annotations

import csv
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from conftest import watched
from fnll.audit.joint import Joint
from fnll.audit.page import SHOWN, page
from fnll.audit.panel import Member
from fnll.audit.plan import Plan
from fnll.images import InMemory, Transform
from fnll.scenario.scenario import OBSERVED, Dataset, Scenario, Truth

SITES, SAMPLES = 12, 1500
WIDTHS = (1280, 390)
HOSTILE = '"><img src=x onerror="window.hacked=1">'
CLASSES = (HOSTILE, "=2+3", *(f"a rather long name of class {i}" for i in range(2, 10)))


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """The page of an audit that suspects all 1,500 samples, those with low numbers most."""
    digits = load_digits()
    images = InMemory((torch.from_numpy(digits.images[:SAMPLES]) * 15).to(torch.uint8)[:, None])
    labels = torch.from_numpy(digits.target[:SAMPLES]).long()
    owners = torch.arange(SAMPLES) % SITES
    sites = (HOSTILE, *(f"Hospital number {k}" for k in range(1, SITES)))
    names = tuple(f"images/site {i % SITES}/patient_{i:05d}.png" for i in range(SAMPLES))
    transform = Transform((0.0,), (1.0,))
    dataset = Dataset(
        "twelve hospitals", images, labels, images, labels, 10, transform, native_noise=True, class_names=CLASSES,
        owners=owners, client_names=sites, names=names, test_truth=OBSERVED,
    )  # fmt: skip
    shards = tuple(torch.nonzero(owners == k).flatten() for k in range(SITES))
    scenario = Scenario(images, labels, shards, 10, transform, "f", "f", "twelve hospitals", sites)
    nan = torch.full((SITES,), torch.nan)
    run = SimpleNamespace(
        dataset=dataset, scenario=scenario, truth=Truth(None, nan, nan, images, labels, test_truth=OBSERVED)
    )
    levels = np.linspace(0.9, 0.0, SITES)[None].repeat(2, 0)
    members = tuple(
        Member(
            name, np.linspace(0.99, 0.3, SAMPLES), (labels.numpy() + 1) % 10, np.full(SAMPLES, np.nan), levels,
            (levels[0] > 0.1).astype(float), held_out=np.array([0.5, 0.7]), judges_samples=True,
        )
        for name in ("confident learning", "fedrn")
    )  # fmt: skip
    plan = Plan(("fedavg", "fedrn"), {"fedcorr": "too few clients"}, 2, 10, 0, ("model=mlp",), 60.0)
    path = tmp_path_factory.mktemp("audit") / "audit.html"
    path.write_text(page(Joint(run, members), plan, ["a warning"], "fnll audit sites.csv --plan plan.json"))
    return path


@pytest.fixture(params=WIDTHS)
def opened(browser, audit, request):
    """The page, offline; whatever it says, asks for or lets through fails the test."""
    context = browser.new_context(viewport={"width": request.param, "height": 800}, offline=True, accept_downloads=True)
    with watched(context.new_page(), audit.as_uri()) as page:
        yield page
    context.close()


def focused(page) -> str:
    return page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id")


def test_it_shows_a_thousand_thumbnails_and_no_other_pictures(opened, audit):
    assert opened.locator("#cards > li").count() == SHOWN == audit.read_text().count("data:image/png")
    assert opened.locator("#count").inner_text() == f"{SHOWN} of {SHOWN} shown"
    last = opened.locator("#cards > li").last
    last.scroll_into_view_if_needed()
    size = last.locator("img").evaluate("image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])")
    assert size == [8, 8]


def test_it_is_as_wide_as_the_window(opened):
    wide = opened.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]
    for parts in ("#cards > li", "#clients .level", "#clients .verdict"):
        boxes = [opened.locator(parts).nth(i).bounding_box() for i in range(3)]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= wide[1] for box in boxes), parts
    inside = "cards => cards.every(card => card.scrollWidth <= card.clientWidth)"
    assert opened.locator("#cards figcaption").evaluate_all(inside)  # long words are broken


def test_arrows_move_and_letters_mark(opened):
    first = opened.locator("#cards figure").first
    first.focus()
    begin = focused(opened)
    assert begin.startswith("1: images/site 0/patient_00000.png")
    for key, place in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("End", SHOWN), ("Home", 1)):
        opened.keyboard.press(key)
        assert focused(opened).startswith(f"{place}: ")
    opened.keyboard.press("ArrowDown")
    columns = int(re.match(r"\d+", focused(opened))[0]) - 1
    assert columns == opened.evaluate(
        "[...document.querySelectorAll('#cards > li')].filter((c, i, all) => c.offsetTop === all[0].offsetTop).length"
    )
    opened.keyboard.press("ArrowUp")
    assert focused(opened) == begin
    opened.keyboard.press("k")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("s")
    assert opened.locator("#save").inner_text() == "Save my marks (2)"
    opened.keyboard.press("x")
    assert opened.locator("#save").inner_text() == "Save my marks (1)"


def test_the_tab_key_passes_the_gallery_in_one_step(opened):
    opened.locator("#save").evaluate("button => { button.disabled = false; button.focus(); }")
    opened.keyboard.press("Tab")
    assert focused(opened).startswith("1: ")
    opened.keyboard.press("Tab")
    assert focused(opened) == "Members"  # the table after the gallery, which can be scrolled


def test_no_card_is_laid_out_only_when_it_is_seen(opened):
    """With `content-visibility: auto` the browser lays all cards out, one by one, when Tab leaves the gallery."""
    styles = "cards => [...new Set(cards.map(card => getComputedStyle(card).contentVisibility))]"
    assert opened.locator("#cards > li").evaluate_all(styles) == ["visible"]


def test_filters_leave_what_was_asked_for(opened):
    opened.locator("#client").select_option("Hospital number 3")
    visible = opened.locator("#cards > li:visible")
    shown = visible.count()
    assert 0 < shown < SHOWN
    assert opened.locator("#count").inner_text() == f"{shown} of {SHOWN} shown"
    assert set(visible.evaluate_all("cards => cards.map(card => card.dataset.client)")) == {"Hospital number 3"}
    opened.locator("#label").select_option(CLASSES[4])
    assert set(visible.evaluate_all("cards => cards.map(card => card.dataset.label)")) == {CLASSES[4]}
    visible.first.locator("figure").focus()
    opened.keyboard.press("End")
    assert focused(opened) == visible.last.locator("figure").get_attribute("aria-label")


def test_marks_are_saved_as_reviewed_labels(opened, tmp_path):
    opened.locator("#cards figure").first.focus()
    opened.keyboard.press("s")  # from class 0 to class 1, whose name looks like a formula
    opened.locator("#cards > li").nth(3).get_by_role("button", name="keep").click()
    with opened.expect_download() as download:
        opened.locator("#save").click()
    download.value.save_as(tmp_path / "review.csv")
    with (tmp_path / "review.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["file", "clean_label"],
        ["images/site 0/patient_00000.png", "'=2+3"],
        ["images/site 3/patient_00003.png", CLASSES[3]],
    ]
