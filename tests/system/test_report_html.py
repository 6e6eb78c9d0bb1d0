"""The page in a real browser: it sorts, filters and opens cells, and neither complains nor asks the network."""

import re

import pytest

from conftest import watched
from fnll.report import analyse, load, main_table, write
from fnll.testing.example import write_store
from fnll.testing.store import write_run

HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    runs = root / "runs"
    cells = ((0.4, 0.0), (0.6, 0.5), (0.8, 0.5))
    write_store(runs, methods=["fedavg", "fedcorr", "fedprox", "oracle"], cells=cells, seeds=3, rounds=12)
    here = {"config": {"noise.rho": 0.8, "noise.tau": 0.5, "rounds": 12}}
    write_run(runs, "fedrn", [0.5, None], seed=0, ending="diverged", **here)
    write_run(runs, "fednoro", [0.5], seed=0, ending="failed", note=HOSTILE, **here)
    write_run(runs, "fedavg", [0.5] * 12, choices={"dataset": HOSTILE}, config={"noise.rho": 0.8, "noise.tau": 0.5})
    return write(analyse(load(runs)), root / "out", with_figures=False).html


@pytest.fixture
def page(browser, report):
    """The report on a laptop; whatever it says or asks for during a test fails that test."""
    with watched(browser.new_page(viewport={"width": 1280, "height": 900}), report.as_uri()) as page:
        yield page


def names(page):
    """Row labels of the comparison, top to bottom."""
    return page.locator("#grid tbody th").all_inner_texts()


def choice(page, label):
    return page.locator(f'select[name="{label}"]')


def columns(page):
    return page.locator("#grid thead th[data-c]").count() - 1


def heading(page, text):
    return page.locator("#grid thead th", has=page.get_by_role("button", name=text))


def test_it_opens_with_the_headline(page):
    assert page.locator("#grid figcaption").inner_text() == "Test accuracy (%), mean of the last 10 evaluations"
    assert names(page) == ["fedavg", "fedcorr", "fednoro", "fedprox", "fedrn", "oracle"]
    assert page.locator("#grid td.best").count() == 3  # the fourth column has one seed
    assert page.locator("#grid td.diverged").inner_text() == "1/3 diverged"


def test_it_rounds_as_the_tables_do(browser, tmp_path):
    values = {"a": 0.99125, "b": 0.98375, "c": 0.991251, "d": 0.991249, "e": 0.875}  # halves, and what is near
    for method, value in values.items():
        write_run(tmp_path / "runs", method, [value])
    analysis = analyse(load(tmp_path / "runs"))
    page = browser.new_page()
    page.goto(write(analysis, tmp_path / "out", with_figures=False).html.as_uri())
    shown = page.locator("#grid tbody td").all_inner_texts()
    page.close()
    assert [text for text in shown if text[:1].isdigit()][:5] == [f"{100 * value:.2f}" for value in values.values()]
    assert main_table(analysis).rows[1].entries[0].text == "99.12"


def test_it_sorts_by_any_column_both_ways(page):
    column = heading(page, re.compile(r"digits.*ρ=0\.6 τ=0\.5"))
    column.get_by_role("button").click()
    assert column.get_attribute("aria-sort") == "descending"
    assert names(page)[:3] == ["fedcorr", "fedprox", "fedavg"]  # what has no number stays below
    column.get_by_role("button").click()
    assert column.get_attribute("aria-sort") == "ascending"
    assert names(page)[:3] == ["fedavg", "fedprox", "fedcorr"]
    heading(page, "method").get_by_role("button").click()
    assert names(page) == ["fedavg", "fedcorr", "fednoro", "fedprox", "fedrn", "oracle"]


def test_the_whole_heading_sorts(page):
    column = heading(page, re.compile(r"digits.*ρ=0\.6 τ=0\.5"))
    box = column.bounding_box()
    for x, y in ((3, 3), (box["width"] - 3, box["height"] - 3)):
        before = column.get_attribute("aria-sort")
        column.click(position={"x": x, "y": y})
        assert column.get_attribute("aria-sort") != before


def test_a_column_leads_with_the_noise_that_there_is(page):
    column = heading(page, re.compile(r"digits.*ρ=0\.6 τ=0\.5"))
    assert column.inner_text().startswith("noise 0.41 (nominal 0.45)")


def test_the_page_says_what_was_compared(page):
    assert page.locator("#overview > .compared").inner_text().endswith("; mean ± std over 1 to 3 seeds")
    assert page.locator(".settings dt").all_inner_texts()[:2] == ["clients", "label noise"]  # data differ
    assert page.locator(".lead").first.inner_text().startswith("5 methods, 4 scenarios, 39 runs:")


def test_sorting_works_from_the_keyboard_and_keeps_the_focus(page):
    heading(page, "method").get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert names(page)[0] == "fedrn"
    assert page.evaluate("document.activeElement.innerText") == "method"


def test_it_filters_by_method_data_noise_and_metric(page):
    page.locator("#methods").get_by_role("button", name="fedprox").click()
    assert "fedprox" not in names(page)
    assert columns(page) == 4
    choice(page, "Noise").select_option(label="rho_tau ρ=0.6 τ=0.5")
    assert columns(page) == 1
    choice(page, "Noise").select_option(index=0)
    choice(page, "Data").select_option(label="digits")
    assert columns(page) == 3
    choice(page, "Metric").select_option("test/loss")
    assert "lower is better" in page.locator("#grid figcaption").inner_text()
    choice(page, "Score of a run").select_option("best")
    assert "best on test" in page.locator("#grid figcaption").inner_text()


def test_it_shows_differences_and_the_recovered_gap(page):
    cell = page.get_by_role("button", name=re.compile(r"^fedcorr, digits · ρ=0\.6"))
    choice(page, "Show").select_option("gain")
    assert re.fullmatch(r"\+\d+\.\d\d \[\+\d+\.\d\d, \+\d+\.\d\d\]", cell.inner_text())
    choice(page, "Show").select_option("share")
    assert re.fullmatch(r"\d+ %", cell.inner_text())


def test_a_cell_opens_to_its_runs_curves_and_diagnostics(page):
    cell = page.get_by_role("button", name=re.compile(r"^fedcorr, digits · ρ=0\.6"))
    cell.click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("heading").first.inner_text() == "fedcorr · digits · ρ=0.6 τ=0.5"
    assert dialog.get_by_text(re.compile(r"^fedcorr-[0-9a-f]{12}$")).count() == 3
    assert dialog.locator("svg.plot path").count() > 3
    assert dialog.get_by_text("wrong labels memorised").count() > 0
    assert dialog.get_by_role("heading", name="To repeat these runs").count() == 1
    heights = dialog.locator(".runs tbody th").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert max(heights) < 45  # an id on one line
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("fedcorr, digits")


def test_a_failed_cell_says_why_and_how_to_repeat_it(page):
    page.get_by_role("button", name=re.compile("^fednoro, digits.*failed")).click()
    dialog = page.get_by_role("dialog")
    assert HOSTILE in dialog.inner_text()  # as text
    assert "fnll run method=fednoro seed=0" in dialog.inner_text()
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_curves_follow_the_choices(page):
    before = page.locator("#chart svg").inner_html()
    choice(page, "x axis").select_option("comm/client_updates")
    assert page.locator("#chart svg").inner_html() != before
    choice(page, "Quantity").select_option("memory/wrong")
    assert page.locator("#chart svg path:not(.band)").count() == 4
    page.locator("#chart svg").hover()
    assert re.match(r"client updates \d+0: .*fedavg \d+\.\d\d", page.locator("#chart-caption").inner_text())


def test_the_pointer_reads_evaluations_only(page):
    chart = page.locator("#chart svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    seen = set()
    for share in (0.1, 0.33, 0.57, 0.99):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 100)
        seen.add(page.locator("#chart-caption").inner_text().split(":")[0])
    assert all(re.fullmatch(r"step \d+", text) for text in seen)
    assert len(seen) == 4


def test_all_runs_are_listed_on_demand(page):
    assert page.locator("#runs tr").count() == 0
    page.get_by_text("All runs").click()
    page.locator("#runs tbody tr").first.wait_for()
    assert page.locator("#runs tbody tr").count() == 39


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser, report, scheme):
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    phone.goto(report.as_uri())
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    phone.locator("#grid td button").first.click()
    assert phone.get_by_role("dialog").bounding_box()["width"] <= 390
    phone.close()


def test_print_leaves_out_the_controls(page):
    page.emulate_media(media="print")
    assert not page.locator("#controls").is_visible()
    assert page.locator("#grid table").is_visible()
    page.emulate_media(media="screen")


def test_without_javascript_the_tables_are_there(browser, report):
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(report.as_uri())
    assert plain.locator("#grid tbody th").count() == 7  # six rows and the noise
    assert plain.locator("#statistics table").count() > 0
    context.close()
