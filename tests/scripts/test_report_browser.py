"""The page in a real browser, headless: it opens from disk, draws, sorts, filters, unfolds, prints."""

import base64
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqarena.common.errors import run_command
from seqarena.common.files import write_json
from seqarena.common.model.attention_maps import EDGES, FILE
from seqarena.scripts.seqarena import dispatch
from tests.scripts.results import result
from tests.scripts.test_report import HTML, planted, write

pytestmark = pytest.mark.extras

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "disable-component-update",
         "disable-sync", "no-first-run", "hide-scrollbars")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert found, "no browser: apt-get install chromium chromium-driver"
    from selenium import webdriver  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = found
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for each in QUIET:
        options.add_argument(f"--{each}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(30)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    made = [result(name, seed, right + seed) for name, right in (("softmax", 90), ("dnas", 110), ("x3", 60))
            for seed in range(3)]  # fmt: skip
    made += [replace(result("x3", seed, 80, command=HTML, notes=[HTML]), row=HTML, attention=HTML) for seed in range(2)]
    made += [result("tanh", 0, None)]
    write(folder, *made)
    for number in (0, 3, 9):
        records = [{"step": step, **told} for step in (10, 20, 30)
                   for told in ({"loss": 3.0}, {"validation": {"accuracy": 0.3}})]  # fmt: skip
        (folder / str(number) / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
        map_ = {"name": "layers.0", "queries": 2, "keys": 2, "map": [[1.5, 0.5], [0.5, 1.5]],
                "histogram": [0] * 7 + [3, 2, 0, 0, 0]}  # fmt: skip
        write_json(folder / str(number) / FILE, {"edges": EDGES, "attentions": [map_] * 2})
    command = ["report", "--runs", str(folder), "--benchmarks", str(folder / "none")]
    assert run_command(dispatch, command) == 0
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("overview")
    write(folder, *planted())
    assert run_command(dispatch, ["report", "--runs", str(folder), "--benchmarks", str(folder / "none")]) == 0
    return (folder / "report.html").as_uri()


OVERLAPPING = """
    const box = (part) => part.getBoundingClientRect();
    return [...document.querySelectorAll(".plot")].flatMap((plot) => {
        const title = plot.querySelector(".xtitle"), frame = box(plot);
        const over = (one, other) => one.left < other.right - 1 && other.left < one.right - 1 &&
            one.top < other.bottom - 1 && other.top < one.bottom - 1;
        const parts = [...plot.querySelectorAll(".xtick text")].map(box);
        return [...parts.filter((each) => title && over(each, box(title))),
                ...[title && box(title), ...parts].filter((each) => each && each.bottom > frame.bottom + 1)];
    }).map((each) => [each.left, each.top]);"""


def opened(browser: Any, page: str, *, width: int = 1200, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page)
    browser.execute_async_script(
        """const done = arguments[0];
        const drawn = (plot) => plot.querySelector(".main-svg, .failed");
        const wait = () => [...document.querySelectorAll(".plot")].every(drawn) ? done() : setTimeout(wait, 50);
        wait();"""
    )


def names(browser: Any) -> list[str]:
    found = browser.find_elements("css selector", "tbody:not([hidden]) > tr:first-child > th")
    return [each.text.removeprefix("▸ ").removeprefix("▾ ") for each in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_everything_is_drawn_and_readable(browser: Any, page: str, scheme: str, width: int) -> None:
    opened(browser, page, width=width, scheme=scheme)
    assert not browser.find_elements("css selector", ".failed")
    assert len(browser.find_elements("css selector", ".plot .main-svg")) >= 8
    assert not [entry for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]
    assert browser.execute_script(OVERLAPPING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    colours = browser.execute_script(
        "const of = (name) => getComputedStyle(document.querySelector(name));"
        "return [of('body').backgroundColor, of('.plot .xtick text').fill, of('td').color]"
    )
    luminance = [sum(float(part) for part in each.strip("rgba()").split(",")[:3]) / 765 for each in colours]
    assert (luminance[0] > 0.9) == (scheme == "light")
    assert all(abs(luminance[0] - ink) > 0.6 for ink in luminance[1:])


def test_a_click_sorts_and_another_turns_it_round(browser: Any, page: str) -> None:
    opened(browser, page)
    (mean,) = (each for each in browser.find_elements("css selector", "thead button") if each.text == "mean")
    mean.click()
    assert names(browser)[:3] == ["dnas", "softmax", f"{HTML} ({HTML})"]
    assert names(browser)[-1] == "tanh"  # diverged: no mean, last either way
    mean.click()
    assert names(browser)[0] == "x3"
    assert names(browser)[-1] == "tanh"
    assert mean.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"


def test_words_filter_the_rows(browser: Any, page: str) -> None:
    opened(browser, page)
    browser.find_element("id", "words").send_keys("DNA")
    assert names(browser) == ["dnas"]
    assert browser.find_element("id", "matches").text == "1 of 5 rows"
    shown = "return [...new Set([...document.querySelectorAll('.protocol .plot')].flatMap((plot) => plot.data ?? [])"
    shown += ".filter((trace) => trace.meta?.row && trace.visible !== false).map((trace) => trace.meta.row))]"
    assert browser.execute_script(shown) == ["dnas"]  # charts follow the filter
    browser.find_element("id", "words").send_keys("zzz")
    assert names(browser) == [] or not browser.find_element("css selector", ".protocol").is_displayed()


def test_the_overview_is_sorted_and_filtered(browser: Any, overview: str) -> None:
    opened(browser, overview)
    assert names(browser)[:4] == ["softmax, mean", "dnas", "hnas", "x3"]
    first = browser.find_element("css selector", ".overview th[data-place] button")
    first.click()
    first.click()  # the smallest first; the baseline's mean stays on top
    assert names(browser)[:4] == ["softmax, mean", "x3", "hnas", "dnas"]
    browser.find_element("id", "words").send_keys("hour")
    shown = "return [...document.querySelectorAll('.overview th[data-place]')].map((each) => !each.hidden)"
    assert sorted(browser.execute_script(shown)) == [False, True]
    assert names(browser)[:4] == ["softmax, mean", "x3", "hnas", "dnas"]
    browser.find_element("id", "words").clear()
    browser.find_element("id", "words").send_keys("dnas")
    assert names(browser)[:2] == ["softmax, mean", "dnas"]
    assert "hnas" not in names(browser)


def test_arrows_say_in_which_order_the_values_stand(browser: Any) -> None:
    """The best first; it is the smallest of a time."""
    opened(browser, (Path(__file__).parents[2] / "docs" / "index.html").as_uri())
    values = "return [...document.querySelectorAll('.overview td.time')].map((each) => parseFloat(each.textContent))"
    values += ".filter((each) => !Number.isNaN(each))"
    heading = browser.find_element("css selector", ".overview th.time")
    for order in ("ascending", "descending"):
        heading.find_element("css selector", "button").click()
        assert heading.get_attribute("aria-sort") == order
        found = browser.execute_script(values)
        assert found == sorted(found, reverse=order == "descending")


def test_a_phone_shows_all_tasks_of_the_overview(browser: Any, overview: str) -> None:
    opened(browser, overview, width=390)
    table, place = (browser.find_element("css selector", f".overview {each}") for each in ("table", ".scroll"))
    assert table.size["width"] <= place.size["width"]
    shown = [each.text.split() for each in browser.find_elements("css selector", ".overview td.better")]
    assert shown == [["▲", "+15.67"]] * 2
    assert not browser.find_element("id", "words").is_displayed()


def test_a_row_unfolds_to_its_runs(browser: Any, page: str) -> None:
    opened(browser, page)
    button = next(each for each in browser.find_elements("css selector", "tbody button") if HTML in each.text)
    button.click()
    fold = browser.find_element("css selector", ".fold")
    assert fold.text.count("seed ") == 2
    assert fold.find_element("css selector", "pre").text == HTML
    assert result("x3", 0, 80).data_checksum in fold.text
    button.click()
    assert not browser.find_elements("css selector", ".fold")
    assert not browser.find_elements("css selector", "body b")


def test_a_click_in_a_legend_hides_a_row(browser: Any, page: str) -> None:
    opened(browser, page)
    legend = next(each for each in browser.find_elements("css selector", ".legend") if HTML in each.text)
    button = next(each for each in legend.find_elements("css selector", "button") if each.text == "dnas")
    points = "return arguments[0].nextElementSibling.querySelectorAll('.scatterlayer .trace path.point').length"
    before = browser.execute_script(points, legend)
    button.click()
    assert browser.execute_script(points, legend) == before - 3
    button.click()
    assert browser.execute_script(points, legend) == before


def test_it_prints_with_its_charts(browser: Any, page: str) -> None:
    opened(browser, page, scheme="dark")
    found = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    printed = base64.b64decode(found["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    browser.execute_async_script("setTimeout(arguments[0], 1000)")
    wide = "return [...document.querySelectorAll('.plot')].map((each) =>"
    wide += " each.querySelector('.main-svg').getBoundingClientRect().width - each.clientWidth)"
    assert max(browser.execute_script(wide)) < 1  # none lies over its neighbour
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not browser.find_element("css selector", ".filter").is_displayed()
