"""The report in a real browser: filter, sort, open, keyboard, phone, dark; nothing on the console, nothing on the network."""

import json
import shutil
import time

import pytest
import torch
from torch import nn

from tiltproof import RunFolder
from tiltproof.reports import report
from tiltproof.runs.curve import certified_curve, write_curve
from tiltproof.verify.api import certify, certify_range

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
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def show(browser):
    """Open a file in a window of this size; assert that the console stays empty and nothing is fetched."""

    def run(path, width=1280, height=900, dark=False):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get(path.as_uri())
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
    certificate = certify(model, images, labels, "R(20)", run=RunFolder(folder, notes={"model": "<b>noise</b>"}))
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
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_filter_and_sort(show, page):
    driver = show(page)
    assert numbers(driver) == list(range(50)), "a page of fifty"
    everything = set(column(driver, "Verdict"))
    for box in driver.find_elements(By.CSS_SELECTOR, "[name=verdict]"):
        if box.get_attribute("value") != "3":
            box.click()
    assert numbers(driver) == [0, 10, 20, 30, 40, 50]
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
    driver = show(page)
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
    shown = driver.execute_script("return data.detailed[0]")
    driver.execute_script("openImage(arguments[0])", shown)
    loaded = "return [...document.querySelectorAll('#detail img')].map((i) => i.complete && i.naturalWidth)"
    wait_for(lambda: driver.execute_script(loaded) == [8] * 5)
    alternatives = [image.get_attribute("alt") for image in driver.find_elements(By.CSS_SELECTOR, "#detail img")]
    assert all(alternatives)
    wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#detail .chart svg[role=img] .sampled"))
    summary = driver.find_element(By.CSS_SELECTOR, "#detail details summary")
    summary.click()
    assert len(driver.find_elements(By.CSS_SELECTOR, "#detail details tbody tr")) >= 2
    plain = driver.execute_script("return rows.find((k) => !detailed.has(k))")
    driver.execute_script("openImage(arguments[0])", plain)
    assert "not part of this report" in driver.find_element(By.ID, "detail").text


def test_the_curve_and_the_hostile_name(show, page):
    driver = show(page)
    wait_for(lambda: len(driver.find_elements(By.CSS_SELECTOR, "#curve-chart .dot")) >= 7)
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


def test_text_stands_out_from_its_paper(show, page):
    """WCAG AA: a contrast ratio of 4.5 for text, in light and dark."""
    ratio = """
      const linear = (v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = (c) => c.match(/\\d+/g).slice(0, 3).map((v) => linear(v / 255));
      const luminance = (c) => { const [r, g, b] = light(c); return .2126 * r + .7152 * g + .0722 * b; };
      const ground = (e) => getComputedStyle(e).backgroundColor;
      const paper = (e) => ground(e).endsWith(', 0)') && e.parentElement ? paper(e.parentElement) : ground(e);
      const places = ['.brand', 'h1', 'blockquote', '.fine', '.tile-note', '.open', '#found', 'summary', '.facts dt'];
      return places.map((s) => {
        const e = document.querySelector(s), a = luminance(getComputedStyle(e).color), b = luminance(paper(e));
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); });"""
    for dark in (False, True):
        assert min(show(page, dark=dark).execute_script(ratio)) >= 4.5


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


def test_ten_thousand_images_answer_at_once(show, large_run, tmp_path):
    path = report(*large_run, out=tmp_path / "large.html", details=5)
    driver = show(path)
    assert len(driver.find_elements(By.CSS_SELECTOR, "#table tbody tr")) == 50, "only a page of rows is drawn"
    driver.find_element(By.CSS_SELECTOR, "[name=verdict][value='0']").click()
    assert driver.find_element(By.ID, "found").text == "3,000 of 10,000 images"
    driver.find_element(By.CSS_SELECTOR, "[data-sort=margin]").click()
    assert len(numbers(driver)) == 50
    driver.find_element(By.XPATH, "//nav//button[text()='Last']").click()
    assert driver.find_element(By.ID, "pages").text.count("page 60 of 60") == 1
