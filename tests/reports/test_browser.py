"""The report in a real browser: slider, grid, heat map, print, filter, sort, keyboard, phone, dark; nothing on the console,
nothing on the network."""

import base64
import json
import re
import shutil
import time

import pytest
import torch
from torch import nn

from tests.support.run_folder import manifest_of, record, write_run
from tiltproof import BranchAndBound, RunFolder
from tiltproof.reports import page as page_module
from tiltproof.reports import report
from tiltproof.runs.curve import certified_curve, write_curve
from tiltproof.transforms import parse
from tiltproof.verify.api import certify, certify_range
from tiltproof.verify.sequence import deviations

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with its driver")

Service = pytest.importorskip("selenium.webdriver.chrome.service").Service
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu", "dev-shm-usage")
    for argument in ("--headless=new", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def show(browser):
    """Open a file in a window of this size; assert that the console stays empty and nothing is fetched."""

    def run(path, width=1280, height=900, dark=False, table=False):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        browser.get(path.as_uri())
        if table:
            browser.find_element(By.CSS_SELECTOR, "[name=view][value=table]").click()
        return browser

    browser.get_log("browser"), browser.get_log("performance")
    yield run
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {address.split(":")[0] for address in addresses} <= {"file", "data"}
    assert len([address for address in addresses if address.startswith("file")]) <= 1


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return sixty noise images under R(20), with a curve."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("browser") / "run"
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    images = torch.rand(60, 1, 8, 8)
    labels = model(images).argmax(1)
    labels[::10] = (labels[::10] + 1) % 3
    search = BranchAndBound(tighten=0.9)  # or no column of margins sorts
    run = RunFolder(folder, notes={"model": "<b>noise</b>"})
    certificate = certify(model, images, labels, "R(20)", search=search, run=run)
    write_curve(folder, certified_curve(model, images, labels, "R(20)", certificate), time.perf_counter())
    return report(folder, model, images, labels, details=10)


def numbers(driver):
    """Return the numbers of the images in the table, read in one call because a refresh replaces all rows."""
    return driver.execute_script(
        "return [...document.querySelectorAll('#table .open')].map((b) => Number(b.textContent))"
    )


def column(driver, name):
    heads = [head.text.rstrip("↑↓ ") for head in driver.find_elements(By.CSS_SELECTOR, "#table thead th")]
    cells = f"#table tbody tr > :nth-child({heads.index(name) + 1})"
    return driver.execute_script("return [...document.querySelectorAll(arguments[0])].map((c) => c.innerText)", cells)


def value(text):
    return float(text.strip("≥≤ ").replace("\N{MINUS SIGN}", "-"))


def test_filter_and_sort(show, page):
    driver = show(page, table=True)
    assert len(numbers(driver)) == 50, "a page of fifty"
    ranks = ["falsified", "unknown", "misclassified", "certified"]
    placed = [ranks.index(word) for word in column(driver, "Verdict")]
    assert placed == sorted(placed), "what matters first"
    everything = set(column(driver, "Verdict"))
    for box in driver.find_elements(By.CSS_SELECTOR, "[name=verdict]"):
        if box.get_attribute("value") != "3":
            box.click()
    assert sorted(numbers(driver)) == [0, 10, 20, 30, 40, 50]
    assert set(column(driver, "Verdict")) == {"misclassified"} != everything
    assert driver.find_element(By.ID, "found").text == "6 of 60 images"
    sort = driver.find_element(By.CSS_SELECTOR, "[data-sort=margin]")
    sort.click()
    margins = [value(text) for text in column(driver, "Margin")]
    assert margins == sorted(margins)
    head = driver.find_element(By.CSS_SELECTOR, "th:has([data-sort=margin])")
    assert head.get_attribute("aria-sort") == "ascending"
    driver.switch_to.active_element.send_keys(Keys.ENTER)  # the sorted column's button kept the focus
    assert [value(text) for text in column(driver, "Margin")] == sorted(margins, reverse=True)
    driver.find_element(By.NAME, "most").send_keys(str(margins[2]))
    assert len(numbers(driver)) == 3
    driver.find_element(By.ID, "all").click()
    wait_for(lambda: len(numbers(driver)) == 50)


def wait_for(condition):
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def test_open_an_image_and_walk_on_by_keyboard(show, page):
    driver = show(page, table=True)
    driver.find_element(By.CSS_SELECTOR, "[data-sort=margin]").send_keys(Keys.ENTER)
    order = numbers(driver)
    first = driver.find_element(By.CSS_SELECTOR, "#table .open")
    first.send_keys(Keys.ARROW_DOWN)
    assert driver.switch_to.active_element.text == str(order[1]), "arrows walk the rows"
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    dialog = driver.find_element(By.ID, "detail")
    title = lambda: driver.find_element(By.ID, "detail-title").text  # noqa: E731
    assert dialog.is_displayed()
    assert title() == f"Image {order[1]}"
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert title() == f"Image {order[2]}"
    driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert title() == f"Image {order[0]}"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(lambda: not dialog.is_displayed())
    assert driver.switch_to.active_element.text == str(order[0]), "the focus goes back to the table"


def test_an_image_shows_images_margins_and_bounds(show, page):
    driver = show(page)
    driver.execute_script("openImage(places.indexOf(0))")
    loaded = "return [...document.querySelectorAll('#detail img')].map((i) => i.complete && i.naturalWidth)"
    wait_for(lambda: driver.execute_script(loaded) == [8] * 5)
    alternatives = [image.get_attribute("alt") for image in driver.find_elements(By.CSS_SELECTOR, "#detail img")]
    assert all(alternatives)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#detail .chart svg[role=img] .sampled"))
    summary = driver.find_element(By.CSS_SELECTOR, "#detail details summary")
    summary.click()
    assert len(driver.find_elements(By.CSS_SELECTOR, "#detail details tbody tr")) >= 2
    driver.execute_script("openImage(places.indexOf(data.count - 1))")
    assert "--images" in driver.find_element(By.ID, "detail").text, "the last one has its margins only"
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#detail .chart .sampled"))


def test_the_curve_and_the_hostile_name(show, page):
    driver = show(page)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#curve-chart svg[role=img]"))
    outline = driver.find_element(By.CSS_SELECTOR, "#curve-chart .proved").get_attribute("d")
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", outline)]
    assert len(points) >= 2 * 12, "two ends of six ranges or more"
    assert all(a[1] == b[1] for a, b in zip(points[::2], points[1::2], strict=True)), "level between two ranges"
    assert all(a[0] == b[0] for a, b in zip(points[1::2], points[2::2], strict=False)), "and steps at them"
    ticks = {text.text for text in driver.find_elements(By.CSS_SELECTOR, "#curve-chart text")}
    assert {"\N{MINUS SIGN}20°", "20°"} <= ticks, "both ends, in degrees"
    assert "<b>noise</b>" in driver.find_element(By.ID, "quote").text
    marks = driver.find_elements(By.CSS_SELECTOR, "#filters .verdict")
    assert [mark.text for mark in marks] == ["certified", "falsified", "unknown", "misclassified"]
    shapes = {mark.find_element(By.TAG_NAME, "use").get_attribute("href") for mark in marks}
    assert len(shapes) == 4, "told apart without color"


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_one_way(show, page, dark):
    driver = show(page, width=360, height=740, dark=dark)
    wide = "const e = arguments[0] ? byId('detail') : document.documentElement; return [e.scrollWidth, e.clientWidth]"
    assert len(set(driver.execute_script(wide, False))) == 1
    driver.execute_script("openImage(data.detailed[0])")
    assert len(set(driver.execute_script(wide, True))) == 1
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(paper.split("(")[1].split(",")[0])
    assert (red < 60) == dark


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_paper(show, page, dark):
    """WCAG AA: a contrast ratio of 4.5 for text, in light and dark."""
    ratio = """
      const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = (c) => c.match(/\\d+/g).slice(0, 3).map((v) => linear(v / 255));
      const luminance = (c) => { const [r, g, b] = light(c); return .2126 * r + .7152 * g + .0722 * b; };
      const ground = (e) => getComputedStyle(e).backgroundColor;
      const paper = (e) => ground(e).endsWith(', 0)') && e.parentElement ? paper(e.parentElement) : ground(e);
      const spots = ['.brand', 'h1', 'blockquote', '.fine', '.when', '.counts span', '.checked', '.said .fine', '.state',
        '#found', 'summary', '.facts dt'];
      return spots.map((s) => {
        const e = document.querySelector(s), a = luminance(getComputedStyle(e).color), b = luminance(paper(e));
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); });"""
    driver = show(page, dark=dark)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, ".state"))
    assert min(driver.execute_script(ratio)) >= 4.5


def test_regression_shows_fans(show, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 14, 1)).eval()
    frames = torch.rand(3, 3, 16, 44)
    certify_range(model, frames, torch.zeros(3), "R(2)", run=RunFolder(tmp_path / "run"))
    driver = show(report(tmp_path / "run", model, frames))
    assert len(driver.find_elements(By.CSS_SELECTOR, "#film-frames .frame svg")) == 3
    driver.find_element(By.CSS_SELECTOR, "#film-frames button").click()
    assert driver.find_element(By.CSS_SELECTOR, "#detail .frame svg").is_displayed()
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#detail .chart .proved"))


@pytest.mark.parametrize(("width", "shown"), [(1280, "strip-wide"), (360, "strip-narrow")])
def test_a_drive_is_a_strip_whose_bars_open_frames(show, tmp_path, width, shown):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 14, 1)).eval()
    frames = torch.rand(6, 3, 16, 44)
    run = RunFolder(tmp_path / "run", notes={"sequence": True})
    results = certify_range(model, frames, torch.zeros(6), "R(2)", run=run).results
    driver = show(report(tmp_path / "run", model, frames), width=width)
    strips = driver.find_elements(By.CSS_SELECTOR, "#drive .strip")
    assert [strip.get_attribute("class").split()[-1] for strip in strips if strip.is_displayed()] == [shown]
    words = driver.find_element(By.CSS_SELECTOR, f"#drive .{shown} .readout")
    assert words.size["height"] >= 10, "legible on a phone as well"
    driver.find_element(By.CSS_SELECTOR, f"#drive .{shown} [data-row='4'] .strip-reached").click()
    assert driver.find_element(By.ID, "detail-title").text == "Image 4"
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    driver.find_element(By.ID, "worst").click()
    worst = max(results, key=lambda each: max(deviations(each))).image
    assert driver.find_element(By.ID, "detail-title").text == f"Image {worst}"


PIXELS = """
  arguments[1](document.querySelector(arguments[0]).toDataURL());"""


def move(driver, part, times, key=Keys.ARROW_RIGHT):
    driver.find_element(By.CSS_SELECTOR, part).send_keys(key * times)


def test_the_slider_turns_the_picture_over_its_margins(show, page):
    driver = show(page)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#hero .ribbon .proved-wash, #hero .ribbon .open-wash"))
    slider = driver.find_element(By.CSS_SELECTOR, "#hero .slider")
    driver.execute_script(
        "arguments[0].value = arguments[0].min; arguments[0].dispatchEvent(new Event('input'))", slider
    )
    wait_for(lambda: driver.execute_script("return document.querySelector('#hero canvas').width") == 8)
    before = driver.execute_async_script(PIXELS, "#hero canvas")
    assert "rotation \N{MINUS SIGN}20°" in slider.get_attribute("aria-valuetext")
    move(driver, "#hero .slider", 8)
    assert slider.get_attribute("aria-label").startswith("rotation (degrees), image ")
    assert "rotation \N{MINUS SIGN}18.67°" in slider.get_attribute("aria-valuetext"), "eight quarters of 40/60 degrees"
    assert driver.execute_async_script(PIXELS, "#hero canvas") != before
    states = set()
    for _ in range(29):
        move(driver, "#hero .slider", 8)
        states.add(driver.find_element(By.CSS_SELECTOR, "#hero .turning-frame").get_attribute("class").split("is-")[1])
    assert "falsified" in states
    kinds = {rect.get_attribute("class") for rect in driver.find_elements(By.CSS_SELECTOR, "#hero .ribbon rect")}
    assert "strip-falsified" in kinds, "red where broken"


@pytest.mark.parametrize(
    "text",
    [
        "R(40)",
        "Sc(-20:30), Tu(2), Sh(30)",
        "Yaw(10@9), Pitch(5@9), Roll(10); padding=reflect",
        "Tv(3), Scu(20), Scv(10), Shv(20); padding=border",
        "R(20), C(40), B(0.2)",
        "G(40), R(10)",
        "S(60), H(50)",
    ],
)
def test_the_page_transforms_by_the_same_definition(show, tmp_path, text):
    """The script's picture is the package's, to the last step of 8 bits."""
    torch.manual_seed(0)
    transform = parse(text)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 12, 3)).eval()
    images = (torch.rand(1, 3, 9, 12) * 255).round() / 255
    low, high = (torch.tensor(ends) for ends in (transform.low, transform.high))
    values = low + 0.77 * (high - low)
    manifest = manifest_of(model, images, model(images).argmax(1), text)
    write_run(tmp_path / "run", manifest, [record(0, int(model(images).argmax()), "unknown", margin=-9.0)])
    driver = show(report(tmp_path / "run", model, images))
    wait_for(lambda: driver.execute_script("return document.querySelector('#hero canvas').width") == 12)
    script = """
      const picture = new Image(), done = arguments[1];
      picture.onload = () => {
        const found = transformed(pixelsOf(picture, data.size), arguments[0]);
        done([...found.values]);
      };
      picture.src = blockOf(0).image;"""
    found = torch.tensor(driver.execute_async_script(script, values.double().tolist()), dtype=torch.float64)
    wanted = transform.apply(images.double(), values.double())[0].permute(1, 2, 0).flatten()
    assert (found - wanted).abs().max() < 1e-7, "the images are float32"


def test_the_grid_walks_by_arrows_and_opens(show, page):
    driver = show(page)
    kinds = driver.execute_script("return [...document.querySelectorAll('.pick')].map((e) => e.className.slice(8))")
    ranks = ["falsified", "unknown", "misclassified", "certified"]
    assert len(kinds) == 60
    assert [ranks.index(kind) for kind in kinds] == sorted(ranks.index(kind) for kind in kinds)
    assert len(driver.find_elements(By.CSS_SELECTOR, ".pick[tabindex='0']")) == 1, "one stop of the Tab key"
    driver.find_element(By.CSS_SELECTOR, ".pick").send_keys(Keys.ARROW_RIGHT)
    second = driver.switch_to.active_element
    assert second.get_attribute("aria-label") == driver.find_elements(By.CSS_SELECTOR, ".pick")[1].get_attribute(
        "aria-label"
    )
    second.send_keys(Keys.ARROW_DOWN, Keys.ARROW_UP)
    second.send_keys(Keys.ENTER)
    number = second.get_attribute("aria-label").split(":")[0]
    assert driver.find_element(By.ID, "detail-title").text == number
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(lambda: driver.switch_to.active_element.get_attribute("aria-label").startswith(number + ":"))


def test_the_map_of_two_parameters_moves_the_picture(show, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    images = torch.rand(2, 1, 8, 8)
    certify(model, images, model(images).argmax(1), "R(3), Sh(3)", run=RunFolder(tmp_path / "run"))
    driver = show(report(tmp_path / "run", model, images))
    driver.execute_script("openImage(0)")
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#detail .map .tile-proved, #detail .map .tile-open"))
    said = lambda: driver.find_element(By.CSS_SELECTOR, "#detail .said strong").text  # noqa: E731
    before = said()
    move(driver, "#detail .map svg", 3, Keys.ARROW_UP)
    move(driver, "#detail .map svg", 3, Keys.ARROW_LEFT)
    assert said() != before
    assert "rotation" in said()
    assert "shearing" in said()
    assert driver.find_element(By.ID, "detail-title").text == "Image 0", "arrows stay in the map"
    driver.find_elements(By.CSS_SELECTOR, "#detail .axes input")[0].send_keys(Keys.ARROW_RIGHT)
    assert driver.find_element(By.CSS_SELECTOR, "#detail .slider").get_attribute("aria-label").startswith("horizontal")


def pages_of(driver):
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"])))


@pytest.mark.parametrize("size", ["small", "large"])
def test_it_prints_on_two_pages(show, page, large_run, tmp_path, monkeypatch, size):
    monkeypatch.setattr(page_module, "SLIDERS", 0)
    large = report(*large_run, out=tmp_path / "large.html", details=1)
    driver = show(large if size == "large" else page)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#hero .ribbon svg"))
    assert pages_of(driver) == 2


def test_ten_thousand_images_answer_at_once(show, large_run, tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "SLIDERS", 20)
    path = report(*large_run, out=tmp_path / "large.html", details=5)
    driver = show(path, table=True)
    assert len(driver.find_elements(By.CSS_SELECTOR, "#table tbody tr")) == 50, "only a page of rows is drawn"
    assert len(driver.find_elements(By.CSS_SELECTOR, ".pick")) == 300, "nor more than some pictures"
    driver.find_element(By.CSS_SELECTOR, "[name=verdict][value='0']").click()
    assert driver.find_element(By.ID, "found").text == "3,000 of 10,000 images"
    driver.find_element(By.CSS_SELECTOR, "[data-sort=verdict]").click()
    assert len(numbers(driver)) == 50
    driver.find_element(By.XPATH, "//nav//button[text()='Last']").click()
    assert driver.find_element(By.ID, "pages").text.count("page 60 of 60") == 1
