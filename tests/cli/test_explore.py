"""The page of `lagrax explore`: its access checks, its answers, and its behaviour in a browser."""

import json
import math
import os
import re
import signal
import socket
import stat
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from lagrax._cli.explore import HOST, make_page_server
from lagrax._cli.explore_sliders import make_state
from lagrax._cli.explore_view import make_view

POPULATION = {"a": 2.2, "tau": 0.9, "start": 0.4}


# --- access ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    """The server, and the address of its page."""
    made, address = make_page_server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made, address
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(scope="module")
def server(page):
    return page[0]


@pytest.fixture(scope="module")
def token(page):
    return re.fullmatch(r"http://127\.0\.0\.1:\d+/([\w-]{32,})/", page[1])[1]


@pytest.fixture(scope="module")
def ask(server, token):
    """Asks the page's program, as a browser on its own page does unless told otherwise."""
    client = server.app.test_client()
    own = {"Host": f"{HOST}:{server.port}"}

    def asking(path="/", method="GET", headers=(), below=f"/{token}", **more):
        return client.open(f"{below}{path}", method=method, headers=own | dict(headers), **more)

    return asking


def payload(ask, asked, shown=None):
    """A request for all pictures."""
    dependencies = ask("/_dash-dependencies").get_json()
    (output,) = [d["output"] for d in dependencies if "trajectory.figure" in d["output"]]
    return {
        "output": output,
        "outputs": [
            dict(zip(("id", "property"), part.split("."), strict=True))
            for part in output.strip(".").split("...")
        ],
        "inputs": [{"id": "asked", "property": "data", "value": asked}],
        "changedPropIds": ["asked.data"],
        "state": [{"id": "shown", "property": "data", "value": shown}],
    }


def asked_for(values=POPULATION, system="population", axis="a"):
    sliders = [[system, name, value, 0.5, 1.0] for name, value in values.items()]
    return {"sliders": sliders, "axis": axis}


def update(ask, body, **more):
    return ask("/_dash-update-component", "POST", json=body, **more)


def test_it_binds_to_loopback_alone(server):
    assert server.socket.getsockname() == ("127.0.0.1", server.port)
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in others - {"127.0.0.1", "::1"}:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as stranger:
            assert stranger.connect_ex((address, server.port)) != 0


def test_own_browser_is_answered(ask, server):
    assert ask().status_code == 200
    assert ask(headers={"Host": f"localhost:{server.port}"}).status_code == 200
    origin = {"Origin": f"http://{HOST}:{server.port}", "Sec-Fetch-Site": "same-origin"}
    assert ask("/_dash-layout", headers=origin).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert ask(headers=link).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:{port}.evil.example"},
        {"Host": "localhost.evil.example:{port}"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/_dash-update-component", "/assets/x"])
def test_strangers_are_refused(ask, server, path, headers):
    headers = {key: value.format(port=server.port) for key, value in headers.items()}
    for method in ("GET", "POST"):
        answer = ask(path, method, headers)
        assert answer.status_code == 403
        assert answer.text == "This page answers requests from its own machine only.\n"


OTHERS = ["", "/", "/wrong", "/{token}x", "/x{token}", "//{token}", "/%00", "/ä", "/{half}"]


@pytest.mark.parametrize("below", OTHERS)
@pytest.mark.parametrize(
    "path", ["/", "/_dash-layout", "/_dash-dependencies", "/_dash-update-component", "/assets/x"]
)
def test_other_users_are_refused(ask, token, below, path):
    """They can reach the port, and do not know the token."""
    below = below.format(token=token, half=token[:16])
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        for more in ("", f"?token={token}"):
            answer = ask(path + more, method, below=below, follow_redirects=True)
            assert answer.status_code == 403
            assert token not in answer.text
            assert token not in str(answer.headers)
    assert answer.text == "Open the complete address that `lagrax explore` printed.\n"


def test_each_page_has_a_token_of_its_own(page):
    made, address = make_page_server()
    made.server_close()
    assert address.rstrip("/").rpartition("/")[2] not in page[1]


def test_page_loads_nothing_from_other_hosts(ask):
    page = ask()
    assert re.search(r"(?i)https?:|//[a-z]", page.text) is None
    assert '<html lang="en">' in page.text
    sources = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert len(sources) > 5
    assert all(re.match(r"/[^/]", source) for source in sources)
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self'; script-src 'self' 'sha256-")
    assert "unsafe-eval" not in policy
    assert re.search(r"script-src[^;]*unsafe-inline", policy) is None
    assert ask("/_mcp", "POST", json={}).status_code in (404, 405)


def test_pictures_are_sent(ask):
    answer = update(ask, payload(ask, asked_for())).get_json()["response"]
    assert len(answer["trajectory"]["figure"]["data"]) == 2
    assert answer["diagram"]["figure"]["layout"]["images"]
    assert answer["link"]["href"].startswith("?system=population&a=2.2&tau=0.9")
    shown = answer["shown"]["data"]
    again = update(ask, payload(ask, asked_for(POPULATION | {"a": 2.3}), shown))
    assert len(again.data) < 40_000
    again = again.get_json()["response"]
    patch = again["diagram"]["figure"]
    assert patch["__dash_patch_update"]
    assert {tuple(o["location"]) for o in patch["operations"]} == {
        ("data", 0, "x"),
        ("data", 1, "x"),
        ("data", 1, "y"),
    }
    assert "shown" not in again


def test_sliders_come_with_the_equation(ask):
    dependencies = ask("/_dash-dependencies").get_json()
    (output,) = [d["output"] for d in dependencies if "sliders.children" in d["output"]]
    names = [part.split(".") for part in output.strip(".").split("...")]
    body = {
        "output": output,
        "outputs": [{"id": i, "property": p} for i, p in names],
        "changedPropIds": [],
        "inputs": [
            {"id": "system", "property": "value", "value": "population"},
            {"id": "reset", "property": "n_clicks"},
            {"id": "url", "property": "search", "value": "?system=linear&tau=2.5&over=tau"},
        ],
    }
    answer = update(ask, body).get_json()["response"]
    assert answer["system"]["value"] == "linear"
    assert "2.5" in json.dumps(answer["sliders"]["children"])
    body["inputs"][2]["value"] = "?system=nobody&tau=x"
    assert update(ask, body).get_json()["response"]["system"]["value"] == "population"
    body["inputs"][2]["value"] = "?system=linear"
    body["changedPropIds"] = ["system.value"]
    assert update(ask, body).get_json()["response"]["system"]["value"] == "population"


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        (asked_for({"a": math.nan}), 400, "a = nan: expected a finite number"),
        (asked_for({"a": "x" * 9000}), 400, "a = 'xxx"),
        (asked_for({"a": 10**4000}), 400, "a = 1000"),
        (asked_for(system="nobody"), 400, "No equation 'nobody'"),
        (asked_for({"__class__": 1.0}), 400, "has no slider '__class__'"),
        (asked_for(system={"a": 1}), 400, "cannot be answered"),
        ({"sliders": 3, "axis": "a"}, 400, "cannot be answered"),
        ({"sliders": [[1]], "axis": "a"}, 400, "cannot be answered"),
        ({}, 400, "cannot be answered"),
        ("text", 400, "cannot be answered"),
        (None, 204, ""),
        ({"sliders": [], "axis": "a"}, 204, ""),
        (asked_for({"a": None}), 400, "a = None: expected a finite number"),
        (asked_for({"lag": 10**30}), 400, "expected a whole number from 0 to 8"),
        (asked_for({"tau": 1e-308}), 400, "expected a number from 0.2 to 10"),
        ({"sliders": [["population", "a", 1.0, 0.2, 1e300]], "axis": "a"}, 400, "a = 1e+300"),
        (asked_for(axis={"a": [1]}), 200, ""),
        (asked_for({"a": 10.0, "tau": 10.0, "start": -10.0}), 200, ""),
        (asked_for({"a": -5.0, "start": 2.0}), 200, ""),
    ],
)
def test_hostile_numbers(ask, asked, status, message):
    answer = update(ask, payload(ask, asked))
    assert answer.status_code == status
    assert message in answer.text
    assert len(answer.text) < 1000 or status == 200
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"null", b'{"output": "x"}', b'{"output": ["x"]}', b"[" * 50_000],
)
def test_hostile_requests(ask, body):
    options = {"data": body, "content_type": "application/json"}
    assert ask("/_dash-update-component", "POST", **options).status_code == 400
    options["content_type"] = "text/plain"
    assert ask("/_dash-update-component", "POST", **options).status_code in (400, 415)
    assert ask("/_dash-update-component", "POST", data=b" " * 100_000).status_code in (
        400,
        413,
        415,
    )
    assert ask("/assets/../exploring.py").status_code in (400, 404)
    assert ask().status_code == 200


# --- the command ----------------------------------------------------------------------------------


def test_a_port_in_use_is_refused(lagrax_command, server):
    code, out, err = lagrax_command("explore", "--no-browser", "--port", str(server.port))
    assert (code, out) == (2, "")
    assert err == (
        f"--port {server.port}: Address already in use. Give another port, or none to take a "
        "free one.\n"
    )


def test_absent_dash_says_what_to_install(lagrax_command, monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    code, out, err = lagrax_command("explore", "--no-browser")
    assert (code, out, err) == (2, "", 'This needs dash: pip install "lagrax[explore]"\n')


def test_it_opens_a_browser_and_ends_when_interrupted(lagrax_command, monkeypatch):
    from lagrax._cli import explore as exploring

    opened = threading.Event()
    addresses = []

    def open_address(address):
        path = Path(urllib.parse.urlsplit(address).path)
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        addresses.append((address, path.read_text(), mode))
        opened.set()

    def serve(self):
        assert opened.wait(10)
        self.server_close()

    monkeypatch.setattr(exploring.webbrowser, "open", open_address)
    monkeypatch.setattr(exploring, "_compile_ahead", lambda: None)
    monkeypatch.setattr(exploring.BaseWSGIServer, "serve_forever", serve)
    code, out, err = lagrax_command("explore")
    assert (code, err) == (130, "Stopped. Nothing was written.\n")
    printed = re.fullmatch(
        r"Exploring at (http://127\.0\.0\.1:\d+/[\w-]{32,}/) \(Ctrl-C ends it\)\n", out
    )
    # Other users can read the browser's command line, and not this file.
    (address, content, modes), path = addresses[0], urllib.parse.urlsplit(addresses[0][0]).path
    assert address == Path(path).as_uri()
    assert printed[1] in content
    assert modes == 0o700
    assert not Path(path).exists()


@pytest.mark.slow
def test_the_process_ends_cleanly(tmp_path):
    command = [sys.executable, "-m", "lagrax", "explore", "--no-browser"]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    said = run.stdout.readline()
    assert re.fullmatch(r"Exploring at http://127\.0\.0\.1:\d+/[\w-]+/ \(Ctrl-C ends it\)\n", said)
    time.sleep(1)  # in the middle of compiling
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out, err) == (130, "", "Stopped. Nothing was written.\n")
    assert list(tmp_path.iterdir()) == []


# --- in a browser ---------------------------------------------------------------------------------

# All that is drawn, as numbers; and the picture behind the diagram's marker.
DRAWN = """
const plot = id => document.querySelector(`#${id} .js-plotly-plot`);
const numbers = id => plot(id).data.map(trace => [trace.x, trace.y]);
return {
    trajectory: numbers("trajectory"),
    plane: numbers("plane"),
    marker: plot("diagram").data[0].x[0],
    picture: (plot("diagram").layout.images || [{source: ""}])[0].source,
    sentence: document.querySelector("#sentence").textContent,
    link: document.querySelector("#link").getAttribute("href"),
};
"""

LISTEN = """
window.redrawn = [];
window.acted = [];
for (const id of ["trajectory", "plane", "diagram"]) {
    const plot = document.querySelector(`#${id} .js-plotly-plot`);
    plot.on("plotly_afterplot", () => window.redrawn.push([id, performance.now()]));
}
for (const kind of ["keydown", "pointermove"]) {
    window.addEventListener(kind, () => window.acted.push(performance.now()), true);
}
"""


def wait_until(browser, condition, seconds=60):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.05).until(condition)


def shown(browser, words, title="Cobweb of the knot map"):
    """Waits for a sentence; what is drawn then."""

    def there(browser):
        told = browser.execute_script(
            "return ['#sentence', '#plane-title']"
            ".map(name => document.querySelector(name)?.textContent)"
        )
        return words in (told[0] or "") and told[1] == title

    wait_until(browser, there)
    drawn = "return document.querySelectorAll('.js-plotly-plot').length"
    wait_until(browser, lambda b: b.execute_script(drawn) == 3)
    time.sleep(0.3)
    return browser.execute_script(DRAWN)


@pytest.fixture
def opened(browser, page):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.get(f"{page[1]}?system=population&a=2.2")
    shown(browser, "0.4971 → 1.503")
    browser.execute_script(LISTEN)
    return browser


def thumb(browser, name):
    return browser.find_element("css selector", f"[aria-label^='{name},'] [role=slider]")


def press(browser, name, key):
    """A key on a slider; how long after it the last plot was drawn anew, in seconds."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.execute_script("arguments[0].focus()", thumb(browser, name))
    browser.execute_script("window.redrawn.length = window.acted.length = 0")
    ActionChains(browser).send_keys(key).perform()
    plots = "return new Set(window.redrawn.map(([id]) => id)).size"
    wait_until(browser, lambda b: b.execute_script(plots) == 3)
    time.sleep(0.3)
    redrawn, acted = browser.execute_script("return [window.redrawn, window.acted]")
    first = dict(reversed(redrawn))
    return (max(first.values()) - acted[0]) / 1e3


def type_into(browser, name, text):
    from selenium.webdriver.common.keys import Keys

    box = browser.find_element("css selector", f"[aria-label^='{name},'] input")
    box.click()
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(text, Keys.ENTER)
    return box


def test_typed_values_are_shown_or_refused(opened):
    box = type_into(opened, "a", "2.345")
    wait_until(opened, lambda b: b.execute_script(DRAWN)["marker"] == 2.345)
    type_into(opened, "a", "5")
    wait_until(opened, lambda b: b.execute_script(DRAWN)["marker"] == 5)
    assert thumb(opened, "a").get_attribute("aria-valuemax") == "5"
    assert "a=5.0" in opened.execute_script(DRAWN)["link"]
    refusal = opened.find_element("css selector", "[aria-label^='a,'] .refusal")
    assert refusal.text == ""
    for text, reason in (("99", "from -5 to 10"), ("abc", "not a number"), (" ", "not a number")):
        type_into(opened, "a", text)
        wait_until(opened, lambda b: reason in refusal.text)  # noqa: B023
        assert box.get_attribute("value") == "5"
        assert opened.execute_script(DRAWN)["marker"] == 5
    # It goes when the reader types again, even the value that is there.
    box.send_keys("5")
    wait_until(opened, lambda b: refusal.text == "")
    type_into(opened, "a", "abc")
    wait_until(opened, lambda b: "not a number" in refusal.text)
    type_into(opened, "lag", "1.5")
    wait_until(opened, lambda b: refusal.text == "")
    refusal = opened.find_element("css selector", "[aria-label^='lag,'] .refusal")
    wait_until(opened, lambda b: "whole number" in refusal.text)


def test_a_refused_address_is_explained(browser, page):
    browser.get(f"{page[1]}?system=population&a=99")
    reason = "a = 99: expected a number from -5 to 10."
    there = lambda b: reason in b.find_element("css selector", "#refused-address").text
    wait_until(browser, there)
    wait_until(browser, lambda b: "From 0.5" in b.find_element("css selector", "#sentence").text)
    browser.execute_script("arguments[0].focus()", thumb(browser, "a"))
    wait_until(browser, lambda b: not there(b))


def test_keys_move_everything(opened):
    from selenium.webdriver.common.keys import Keys

    before = opened.execute_script(DRAWN)
    assert before["marker"] == 2.2
    assert before["picture"].startswith("data:image/png;base64,")
    press(opened, "a", Keys.ARROW_RIGHT)
    after = shown(opened, "cycle that repeats after 2 knots")
    assert after["marker"] == 2.21
    assert "a=2.21" in after["link"]
    assert after["picture"] == before["picture"]
    for plot in ("trajectory", "plane", "sentence"):
        assert after[plot] != before[plot]
    expected = make_view(make_state("population", {"a": 2.21}))
    ys = lambda drawing: np.array(drawing["data"][0]["y"])
    np.testing.assert_allclose(after["trajectory"][0][1], ys(expected.trajectory))
    press(opened, "τ", Keys.HOME)
    last = shown(opened, "settles at a fixed point")
    assert last["picture"] != after["picture"]
    assert "tau=0.2" in last["link"]
    press(opened, "lag", Keys.ARROW_RIGHT)
    assert "lag=1" in shown(opened, "depends on 2", "Successive knots")["link"]
    press(opened, "start", Keys.END)
    assert "start=2" in shown(opened, "From 2 it", "Successive knots")["link"]


@pytest.mark.slow
def test_dragging_is_followed_on_the_way(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    drag = ActionChains(opened, duration=20).click_and_hold(thumb(opened, "a"))
    for _ in range(60):
        drag = drag.move_by_offset(-1, 0)
    drag.release().perform()
    value = float(thumb(opened, "a").get_attribute("aria-valuenow"))
    assert 0.8 < value < 1.4
    wait_until(opened, lambda b: b.execute_script(DRAWN)["marker"] == value)
    redrawn, acted = opened.execute_script("return [window.redrawn, window.acted]")
    times = [at for name, at in redrawn if name == "trajectory" and at < acted[-1]]
    print(f"dragged for {acted[-1] - acted[0]:.0f} ms, redrawn {len(times)} times")
    assert len(times) >= 5


@pytest.mark.slow
def test_moves_are_drawn_within_a_second(opened):
    from selenium.webdriver.common.keys import Keys

    for name in ("a", "τ"):
        seconds = [press(opened, name, Keys.ARROW_LEFT) for _ in range(15)]
        print(f"{name}: {1e3 * statistics.median(seconds):.0f} ms until the last plot is redrawn")
        assert statistics.median(seconds) < 1


@pytest.mark.slow
def test_nothing_leaves_the_machine(opened, page):
    own = page[1]
    asked = opened.execute_script(
        "return performance.getEntries().filter(e => 'initiatorType' in e).map(e => e.name)"
    )
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(own)] == []
    linked = opened.execute_script(
        "return [...document.querySelectorAll('[src], [href]')].map(e => e.src || e.href)"
    )
    assert [url for url in linked if isinstance(url, str) and not url.startswith(own)] == []
    assert [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_the_browser_gets_to_the_page(browser, tmp_path):
    """From the file that the command has it open."""
    script, asked = tmp_path / "browser", tmp_path / "asked"
    script.write_text(f'#!/bin/sh\necho "$1" > {asked}.part\nmv {asked}.part {asked}\n')
    script.chmod(0o755)
    command = [sys.executable, "-m", "lagrax", "explore"]
    environment = os.environ | {"BROWSER": f"{script} %s"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as run:
        try:
            printed = re.search(r"http\S*", run.stdout.readline())[0]
            wait_until(browser, lambda b: asked.exists())
            browser.get(asked.read_text().strip())
            wait_until(browser, lambda b: b.current_url == printed)
            assert "lagrax explore" in wait_until(browser, lambda b: b.title)
            shown(browser, "From 0.5")
        finally:
            run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=30) == ("", "Stopped. Nothing was written.\n")


@pytest.mark.slow
def test_equations_are_chosen_and_reset(opened):
    opened.find_element("css selector", "#system").click()
    option = "//*[contains(@class, 'option')][contains(., 'Linear')]"
    wait_until(opened, lambda b: b.find_elements("xpath", option))[-1].click()
    shown(opened, "two components", "Successive knots of x₁")
    assert opened.find_elements("css selector", "[aria-label^='a,']") == []
    opened.execute_script(LISTEN)
    from selenium.webdriver.common.keys import Keys

    press(opened, "τ", Keys.END)
    assert "system=linear&tau=4" in shown(opened, "grows", "Successive knots of x₁")["link"]
    opened.find_element("css selector", "#reset").click()
    reset = shown(opened, "dies out", "Successive knots of x₁")
    assert reset["marker"] == 1.0
    opened.get(opened.current_url.partition("?")[0] + reset["link"])
    assert shown(opened, "dies out", "Successive knots of x₁") == reset


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(opened, tmp_path, width, scheme):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    time.sleep(0.5)
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    boxes = opened.execute_script(
        "return [...document.querySelectorAll('.plot .main-svg')]"
        ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.right, b.height])"
    )
    assert boxes
    for left, right, height in boxes:
        assert 0 <= left < right <= width
        assert height > 200
    paper = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert opened.save_screenshot(str(tmp_path / "page.png"))
