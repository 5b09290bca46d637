"""The page in a real browser: what it shows, asks for and says, on a telephone and a wide screen,
light and dark."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.comparison import OnInputs
from fa_tune.core.stats import Ratio
from fa_tune.profile import profile_json
from fa_tune.report.load import load_report_source
from fa_tune.report.page.render import write_page
from fa_tune.report.page.source import Source, source_of
from fa_tune.store.table.rows import Row
from tests.project_files import ROOT

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe_core = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (Debian: chromium)"),
    pytest.mark.xdist_group("browser"),
]

RECORDED = ROOT / "profiles" / "nvidia_h200" / "fast_events.csv"
OTHER = ROOT / "profiles" / "nvidia_h100_80gb_hbm3" / "fast_events.csv"
EXPLAINED = ROOT / "profiles" / "nvidia_h200" / "ladder_explain.json"
SCREENS = [(360, "light"), (390, "dark"), (1440, "light"), (1440, "dark")]
HEIGHT = 900
SECTIONS = (
    *("answers", "rates", "ties", "single", "inputs", "busy", "waits", "explained", "counters"),
    *("differences", "results"),
)
LENGTHS = (512, 4096)  # axe-core takes a second for some hundred rows


def _rows(path: Path) -> list[Row]:
    return [row for row in load_report_source(path) if row.seq_len in LENGTHS]


def _sources() -> tuple[list[Source], list[Source]]:
    source = source_of(RECORDED, _rows(RECORDED))
    key, chosen = next((k, c) for k, c in source.chosen.items() if "q4096_" in k)
    figures = [OnInputs("normal", 1e-3, None), OnInputs("sink", 1.2e-3, Ratio(0.9, None))]
    source = dataclasses.replace(
        source, on_inputs={key: {chosen: figures}}, profiled=profile_json.load(EXPLAINED)
    )
    return [source], [source_of(OTHER, _rows(OTHER))]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    sources, against = _sources()
    write_page(path, sources, against)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Opened:
    """The page in a tab, with all that it said and asked for."""

    def __init__(self, browser: Any, html: Path, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme
        )
        self.tab = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(html.as_uri())
        self.tab.wait_for_function("document.documentElement.dataset.drawn")


@pytest.fixture(scope="module")
def wide(browser: Any, html: Path) -> Iterator[Opened]:
    opened = Opened(browser, html, 1600, "light")
    yield opened
    opened.context.close()


def _document(opened: Opened) -> dict[str, Any]:
    text = opened.tab.locator("#fa-tune-page").text_content()
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_any_screen_shows_it_without_errors_requests_or_barriers(
    browser: Any, html: Path, width: int, scheme: str
) -> None:
    opened = Opened(browser, html, width, scheme)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    for figure in opened.tab.locator("[data-figure] svg").all():
        box = figure.bounding_box()
        assert box is not None
        assert 0 < box["width"] <= width
    background = opened.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    found = axe_core.Axe().run(opened.tab).response["violations"]
    assert not found, [(v["id"], v["nodes"][0]["html"][:200]) for v in found]
    opened.context.close()


def test_every_section_has_its_figure(wide: Opened) -> None:
    drawn = {
        figure.get_attribute("data-figure"): figure.locator("svg").count()
        for figure in wide.tab.locator("[data-figure]").all()
    }
    assert drawn == dict.fromkeys(SECTIONS, 1)


def test_figures_draw_the_results_and_no_others(wide: Opened) -> None:
    document = _document(wide)
    rows = _rows(RECORDED)
    timed = [row for row in rows if row.rank_s is not None]
    medians = [r["median_ms"] for r in document["sections"]["results"] if r["median_ms"]]
    assert sorted(medians) == pytest.approx(sorted(1e3 * row.rank_s for row in timed))
    symbols = wide.tab.locator("[data-figure=results] [aria-roledescription=point]")
    assert symbols.count() == len([r for r in document["sections"]["results"] if r["tflops"]])
    answers = [r for r in document["sections"]["answers"] if r["times"]]
    points = wide.tab.locator("[data-figure=answers] [aria-roledescription=point]")
    assert points.count() == len(answers)
    shown = wide.tab.locator("[data-figure=answers] .mark-text.role-mark text").all_text_contents()
    assert shown == [f"{r['times']:.2f}× {r['library']}" for r in answers]
    points = wide.tab.locator("[data-figure=differences] [aria-roledescription=point]")
    assert points.count() == len(document["sections"]["differences"])


def test_the_chosen_configs_are_those_recorded(wide: Opened) -> None:
    decided = json.loads(RECORDED.with_suffix(".meta.json").read_text())["decided"]
    confirmed = {k: d["confirmed"]["chosen"] for k, d in decided.items() if d["confirmed"]}
    answers = _document(wide)["sections"]["answers"]
    shown = {r["key"]: f"{r['family']}:{r['kernel']}" for r in answers if r["key"] in confirmed}
    assert shown
    assert shown.items() <= confirmed.items()


def test_every_number_is_in_sight(browser: Any, html: Path) -> None:
    """On a telephone, too, once long tables are opened."""
    opened = Opened(browser, html, 360, "light")
    outside = opened.tab.evaluate(
        """() => {
            for (const part of document.querySelectorAll("details")) part.open = true;
            return [...document.querySelectorAll("td, dd, p, h1, figure svg")]
                .filter((e) => e.textContent.trim())
                .filter((e) => {
                    const box = e.getBoundingClientRect();
                    return !box.width || box.left < 0 || box.right > innerWidth
                        || e.scrollWidth > e.clientWidth + 1;
                }).map((e) => e.outerHTML.slice(0, 100));
        }"""
    )
    assert outside == []
    opened.context.close()


def test_ties_show_one_workload_at_a_time(wide: Opened) -> None:
    tied = _document(wide)["sections"]["ties"]
    points = wide.tab.locator("[data-figure=ties] [aria-roledescription=point]")
    for label in list(dict.fromkeys(r["workload"] for r in tied))[:3]:
        wide.tab.locator("[data-figure=ties] select").select_option(label)
        assert points.count() == sum(r["workload"] == label for r in tied)


def test_rates_show_one_kind_at_a_time_with_the_recorded_ratios(wide: Opened) -> None:
    rates = _document(wide)["sections"]["rates"]
    bars = wide.tab.locator("[data-figure=rates] [aria-roledescription=bar]")
    for kind in dict.fromkeys(r["kind"] for r in rates):
        wide.tab.locator("[data-figure=rates] select").select_option(kind)
        mine = [r for r in rates if r["kind"] == kind]
        assert bars.count() == len(mine)
        above = wide.tab.locator("[data-figure=rates] .mark-text.role-mark text")
        shown = [text.removesuffix("×") for text in above.all_text_contents()]
        assert shown == [f"{r['times']:.2f}" for r in mine if r["times"]]
    for workload in {r["workload"] for r in rates}:
        mine = {r["kernel"]: r for r in rates if r["workload"] == workload}
        libraries = [r["tflops"] for kernel, r in mine.items() if kernel != "fa-tune"]
        ours = mine["fa-tune"]
        assert ours["tflops"] / ours["times"] == pytest.approx(max(libraries))


def test_counters_are_those_of_every_profiled_kernel(wide: Opened) -> None:
    found = _document(wide)["sections"]["counters"]
    cells = wide.tab.locator("[data-figure=counters] .mark-rect.role-mark path")
    assert cells.count() == len(found)
    profiled = {m.subject.partition(":")[2]: m for m in profile_json.load(EXPLAINED)}
    times = {r["kernel"]: r["value"] for r in found if r["counter"] == "time"}
    assert len(times) == len(profiled)
    for kernel in times.keys() & profiled.keys():
        samples_s = profiled[kernel].samples_s
        assert times[kernel] == pytest.approx(sorted(samples_s)[len(samples_s) // 2])
    for counter in {r["counter"] for r in found}:
        of_line = [r for r in found if r["counter"] == counter]
        most = max(r["value"] for r in of_line)
        assert [r["share"] for r in of_line] == pytest.approx([r["value"] / most for r in of_line])


def test_tables_are_sorted_by_number_both_ways(wide: Opened) -> None:
    wide.tab.locator("#results details").evaluate("part => part.open = true")
    table = wide.tab.locator("#results-table")
    header = table.get_by_role("columnheader", name="median (ms)")
    place = header.evaluate("cell => cell.cellIndex + 1")

    def shown() -> list[float]:
        cells = table.locator(f"tbody tr td:nth-child({place})").all_text_contents()
        return [float(cell.replace(",", "")) for cell in cells if cell]

    header.get_by_role("button").focus()
    wide.tab.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    ascending = shown()
    assert ascending == sorted(ascending)
    wide.tab.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "descending"
    assert shown() == sorted(ascending, reverse=True)


def test_tables_are_filtered_by_words(wide: Opened) -> None:
    wide.tab.locator("#results details").evaluate("part => part.open = true")
    field = wide.tab.locator("#results-filter")
    rows = wide.tab.locator("#results-table tbody tr:visible")
    every = rows.count()
    field.fill("causal FA2")
    texts = rows.all_text_contents()
    assert 0 < len(texts) < every
    assert all("causal" in text and "FA2" in text for text in texts)
    assert wide.tab.locator("#results-count").text_content() == f"{len(texts)} of {every} rows"
    field.fill("")
    assert rows.count() == every


def test_colours_follow_the_system_while_it_is_open(browser: Any, html: Path) -> None:
    opened = Opened(browser, html, 1600, "light")
    opened.tab.emulate_media(color_scheme="dark")
    opened.tab.wait_for_function("document.documentElement.dataset.drawn === 'dark'")
    text = opened.tab.locator("[data-figure=results] .role-axis-label text").first
    assert text.get_attribute("fill") == "#e6edf3"
    assert opened.said == []
    opened.context.close()


def test_the_keyboard_reaches_filters_and_figures_choices(browser: Any, html: Path) -> None:
    wide = Opened(browser, html, 1600, "light")
    wide.tab.keyboard.press("Tab")
    first = wide.tab.evaluate("document.activeElement.textContent")
    assert first == "Skip to the results"
    reached = set()
    for _ in range(60):
        wide.tab.keyboard.press("Tab")
        reached.add(wide.tab.evaluate("document.activeElement.tagName"))
    assert {"A", "INPUT", "BUTTON", "SELECT"} <= reached
    wide.context.close()
