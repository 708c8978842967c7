"""The chat page: how it is served, and how it behaves in a browser over a scripted engine."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn

from engine.client import EngineClient
from server.app import create_app
from server.config import ServerConfig
from server.service import Service
from server.static_files import ASSETS, DIRECTORY
from server.tokenizer import Tokenizer
from tests.server.conftest import Api
from tests.server.scripted_engine import ScriptedEngine, answer

OWN_FILES = sorted(
    path for path in DIRECTORY.rglob("*") if path.is_file() and path.parent.name != "vendor"
)
SCRIPT_TYPE = "text/javascript; charset=utf-8"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": SCRIPT_TYPE,
    ".mjs": SCRIPT_TYPE,
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


# ---- how it is served


async def test_page(api: Api) -> None:
    response = await api.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>DFlash chat</title>" in response.text
    head = await api.http.head("/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", sorted(ASSETS))
async def test_file(api: Api, path: str) -> None:
    response = await api.http.get(f"/static/{path}")
    assert response.status_code == 200
    assert response.content == (DIRECTORY / path).read_bytes()
    headers = response.headers
    assert headers["content-type"] == TYPES[Path(path).suffix]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-cache"
    for etag in (headers["etag"], f'W/{headers["etag"]}, "other"'):
        again = await api.http.get(f"/static/{path}", headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == headers["etag"]


async def test_content_security_policy(api: Api) -> None:
    header = (await api.http.get("/")).headers["content-security-policy"]
    policy = dict(directive.split(" ", 1) for directive in header.split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in header


async def test_every_file_that_is_named_is_served(api: Api) -> None:
    page = (DIRECTORY / "index.html").read_text()
    named = set(re.findall(r'(?:href|src)="(static/[^"]+)"', page))
    for path in OWN_FILES:
        modules = re.findall(r'from "\./([^"]+)"', path.read_text())
        named |= {f"static/{module}" for module in modules}
    assert len(named) > 10
    for address in named:
        assert (await api.http.get(f"/{address}")).status_code == 200, address


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, never fetched
    assert not re.search(r"\w+://|\burl\(|@import|(src|href)=\"//", text)


def test_no_inline_script_or_style() -> None:
    page = (DIRECTORY / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script>", page)


def test_vendored_licences() -> None:
    for library in ("marked", "dompurify"):
        assert "icense" in (DIRECTORY / "vendor" / f"{library}-LICENSE.txt").read_text()


@pytest.mark.parametrize(
    "path", ["none.js", "../static_files.py", "%2e%2e/app.py", "..%2fapp.py", "vendor", ""]
)
async def test_no_other_file(api: Api, path: str) -> None:
    response = await api.http.get(f"/static/{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


async def test_api_is_not_shadowed(api: Api) -> None:
    assert (await api.http.get("/v1/models")).json()["object"] == "list"
    assert (await api.http.get("http://test//v1/models")).json()["object"] == "list"
    assert (await api.http.get("/health")).json() == {"status": "ok"}
    assert (await api.http.get("/nothing")).json()["error"]["code"] == "not_found"
    assert (await api.http.post("/")).json()["error"]["code"] == "method_not_allowed"
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    assert "/v1/chat/completions" in paths
    assert not {"/", "/static/{path}"} & set(paths)


# ---- in a browser

CHROMIUM = Path("/usr/bin/chromium")
HAS_CHROMIUM = CHROMIUM.exists()
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TEXT = "Some **bold** words.\n\n```python\nx = 1\n```\n"


@dataclass
class Browsing:
    """A page in Chromium, and the scripted server that it came from."""

    page: Any
    engine: ScriptedEngine
    tokenizer: Tokenizer
    url: str
    complaints: list[str] = field(default_factory=list)

    def will_answer(self, text: str) -> list[Any]:
        steps = answer(self.tokenizer.encode(text))
        self.engine.steps = [*steps]
        return steps

    async def ask(self, text: str) -> None:
        await self.page.fill("#prompt", text)
        await self.page.press("#prompt", "Enter")

    async def ask_and_wait(self, text: str) -> None:
        answers = await self.page.locator(".assistant").count()
        await self.ask(text)
        await self.answered(answers)

    async def answered(self, index: int = 0, state: str = "done") -> Any:
        article = self.page.locator(".assistant").nth(index)
        await self.page.wait_for_function(
            "([i, state]) => document.querySelectorAll('.assistant')[i]?.dataset.state === state",
            arg=[index, state],
        )
        return article

    async def count(self, selector: str) -> int:
        return cast(int, await self.page.locator(selector).count())

    async def text(self, selector: str) -> str:
        return cast(str, await self.page.locator(selector).first.text_content())


@pytest.fixture
async def browsing(checkpoint: Path, tokenizer: Tokenizer) -> AsyncIterator[Browsing]:
    playwright = pytest.importorskip(
        "playwright.async_api", reason="playwright is not installed: pip install playwright"
    )
    if not HAS_CHROMIUM:
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    engine, service = ScriptedEngine(), Service("tiny")
    await service.start(cast(EngineClient, engine), checkpoint)
    config = uvicorn.Config(create_app(service, ServerConfig()), log_level="warning")
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(10_000)
        here = Browsing(page, engine, tokenizer, url)
        _listen(here)
        await page.goto(url)
        await page.wait_for_selector(".dot[data-state=ready]")
        yield here
        await browser.close()
    server.should_exit = True
    await serving
    service.close()
    assert here.complaints == []


def _listen(here: Browsing) -> None:
    """Whatever the page does wrong: exceptions, breaches of its policy, requests elsewhere."""

    def on_console(message: Any) -> None:
        # A refused request is reported too; the tests refuse some on purpose.
        if message.type == "error" and "Failed to load resource" not in message.text:
            here.complaints.append(message.text)

    def on_request(request: Any) -> None:
        if not request.url.startswith((here.url, "blob:")):
            here.complaints.append(request.url)

    here.page.on("console", on_console)
    here.page.on("pageerror", lambda error: here.complaints.append(str(error)))
    here.page.on("request", on_request)


async def test_send_and_tint(browsing: Browsing) -> None:
    page = browsing.page
    assert await browsing.text("#model-name") == "tiny"
    assert await page.locator(".example").count() == 4
    steps = browsing.will_answer(TEXT)
    await browsing.ask("Hi")
    article = await browsing.answered()
    assert await article.locator("strong").text_content() == "bold"
    assert await article.locator(".code pre").text_content() == "x = 1\n"
    figures = await article.locator(".strip").text_content()
    num_tokens = sum(len(step.token_ids) for step in steps)
    assert f"{num_tokens} tokens in {len(steps)} steps" in figures

    await page.click("#tint")
    spans = article.locator(".tinted .step")
    await spans.first.wait_for()
    texts = await spans.all_text_contents()
    assert "".join(texts) == TEXT
    assert len(texts) in (len(steps), len(steps) - 1)  # the last may have brought only the end
    assert (
        await spans.nth(1).get_attribute("title")
        == f"Block 2: 3 tokens, {len(texts[1])} characters"
    )
    assert await article.locator(".ribbon i").count() == len(steps)
    accepted = sum(len(step.token_ids) - 1 for step in steps[1:])
    caption = await article.locator("figcaption").text_content()
    assert caption.startswith(f"{accepted} of {3 * (len(steps) - 1)} drafts accepted")
    await spans.nth(2).hover()
    assert await article.locator(".ribbon .lit").get_attribute("data-step") == "2"
    assert (await article.locator(".block-note").text_content()).startswith("Block 3: 4 tokens")

    await page.click("#tint")
    await article.locator("strong").wait_for()
    assert await article.locator(".text .step").count() == 0


async def test_stream_and_stop(browsing: Browsing) -> None:
    page, more = browsing.page, asyncio.Event()
    steps = browsing.will_answer("Once upon a time")
    browsing.engine.steps = [*steps[:3], more, *steps[3:]]
    await browsing.ask("Tell me")
    article = await browsing.answered(state="streaming")
    await page.wait_for_function("() => document.querySelector('.assistant > .text').textContent")
    begun = await article.locator("> .text").text_content()
    assert "Once upon a time".startswith(begun.strip())
    assert await page.locator("#send").is_hidden()
    await page.click("#stop")
    await browsing.answered(state="stopped")
    assert await article.locator(".note").text_content() == "Stopped."
    assert (await article.locator("> .text").text_content()).strip() == begun.strip()
    assert await page.locator("#send").is_visible()
    while not browsing.engine.aborted:  # noqa: ASYNC110 - the engine tells nobody
        await asyncio.sleep(0.01)


async def test_tint_while_streaming(browsing: Browsing) -> None:
    page, more = browsing.page, asyncio.Event()
    steps = browsing.will_answer(TEXT)
    browsing.engine.steps = [*steps[:3], more, *steps[3:]]
    await page.click("#tint")
    await browsing.ask("Hi")
    await page.wait_for_function("() => document.querySelectorAll('.tinted .step').length === 3")
    assert "tokens/step" in await browsing.text(".strip")
    more.set()
    article = await browsing.answered()
    assert await article.locator(".tinted").nth(1).text_content() == TEXT


async def test_regenerate_and_edit(browsing: Browsing) -> None:
    page = browsing.page
    browsing.will_answer("First")
    await browsing.ask_and_wait("One")
    browsing.will_answer("Second")
    await browsing.ask_and_wait("Two")
    browsing.will_answer("Third")
    await page.get_by_role("button", name="Ask again").last.click()
    await page.wait_for_function("() => document.body.innerText.includes('Third')")
    await browsing.answered(1)
    assert "Second" not in await browsing.text("#thread")

    browsing.will_answer("Fourth")
    await page.locator(".user").first.hover()
    await page.get_by_role("button", name="Edit and send again").first.click()
    await page.get_by_label("Edit the message").fill("Uno")
    await page.keyboard.press("Enter")
    await page.wait_for_function("() => document.body.innerText.includes('Fourth')")
    await browsing.answered()
    assert await page.locator(".bubble").all_text_contents() == ["Uno"]
    assert await browsing.count(".assistant") == 1
    prompts = [browsing.tokenizer.decode(s.prompt_token_ids) for s in browsing.engine.submitted]
    assert len(prompts) == 4
    assert "Two" in prompts[2]
    assert "Uno" in prompts[3]
    assert "One" not in prompts[3]


async def test_history(browsing: Browsing) -> None:
    page = browsing.page
    browsing.will_answer(TEXT)
    await browsing.ask_and_wait("Remember me")
    await page.click("#new-chat")
    assert await browsing.count(".message") == 0
    await browsing.ask_and_wait("Another")
    await page.reload()
    await page.wait_for_selector(".assistant strong")
    assert await page.locator(".conversation").all_text_contents() == ["Another", "Remember me"]
    assert await page.locator(".bubble").all_text_contents() == ["Another"]
    await page.get_by_role("button", name="Remember me", exact=True).click()
    assert await page.locator(".bubble").all_text_contents() == ["Remember me"]
    assert "tokens in" in await browsing.text(".strip")
    await page.click("#tint")
    await page.locator(".tinted .step").first.wait_for()

    await page.locator("#conversations li").nth(1).hover()
    await page.get_by_role("button", name="Rename “Remember me”").click()
    await page.get_by_label("New name").fill("Kept")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Kept", exact=True).wait_for()
    await page.locator("#conversations li").nth(1).hover()
    await page.get_by_role("button", name="Delete “Kept”").click()
    assert await page.locator(".conversation").all_text_contents() == ["Another"]
    assert await browsing.count(".message") == 0
    await page.get_by_role("button", name="Undo").click()
    await page.reload()
    await page.locator(".conversation").first.wait_for()
    assert await page.locator(".conversation").all_text_contents() == ["Another", "Kept"]


@pytest.mark.parametrize("kind", ["markdown", "json"])
async def test_export(browsing: Browsing, kind: str) -> None:
    page = browsing.page
    browsing.will_answer(TEXT)
    await browsing.ask_and_wait("Hello there")
    async with page.expect_download() as download:
        await page.click("#export")
        await page.click(f"[data-export={kind}]")
    file = await download.value
    text = _read(await file.path())
    if kind == "markdown":
        assert file.suggested_filename == "hello-there.md"
        assert text == f"# Hello there\n\n## You\n\nHello there\n\n## Assistant\n\n{TEXT}\n"
    else:
        exported = json.loads(text)
        assert exported["model"] == "tiny"
        assert exported["conversations"][0]["messages"][1]["content"] == TEXT


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


async def test_error_and_retry(browsing: Browsing) -> None:
    page = browsing.page
    browsing.will_answer("Here I am")
    browsing.engine.alive = False
    await browsing.ask("Hi")
    article = await browsing.answered(state="failed")
    alert = await article.locator("[role=alert]").text_content()
    assert "The engine has stopped" in alert
    assert re.search(r"asked to wait [1-5] s", alert)
    browsing.engine.alive = True
    await page.get_by_role("button", name="Try again").click()
    article = await browsing.answered()
    assert (await article.locator("> .text").text_content()).strip() == "Here I am"
    assert await browsing.count("[role=alert]") == 0


async def test_error_in_mid_stream(browsing: Browsing) -> None:
    steps = browsing.will_answer("It begins well")
    browsing.engine.steps = [*steps[:3], RuntimeError("no more")]
    await browsing.ask("Hi")
    article = await browsing.answered(state="failed")
    assert "It" in await article.locator("> .text").text_content()
    assert "The answer broke off" in await article.locator("[role=alert]").text_content()


async def test_too_many_requests(browsing: Browsing) -> None:
    error = {"message": "The queue is full.", "type": "x", "param": None, "code": "queue_full"}

    async def refuse(route: Any) -> None:
        await route.fulfill(
            status=429, headers={"Retry-After": "17"}, body=json.dumps({"error": error})
        )

    await browsing.page.route("**/v1/chat/completions", refuse)
    await browsing.ask("Hi")
    article = await browsing.answered(state="failed")
    alert = await article.locator("[role=alert]").text_content()
    assert "The server is busy" in alert
    assert "The queue is full." in alert
    assert "asked to wait 17 s" in alert


async def test_unreachable(browsing: Browsing) -> None:
    await browsing.page.route("**/v1/chat/completions", lambda route: route.abort())
    await browsing.ask("Hi")
    await browsing.answered(state="failed")
    assert "cannot be reached" in await browsing.text("[role=alert]")


async def test_hostile_answer(browsing: Browsing) -> None:
    browsing.will_answer(
        "<img src=x onerror=alert(1)> <script>alert(2)</script>\n\n[a](javascript:alert(3)) "
        "![i](http://example.org/i.png)\n\n<style>body{display:none}</style>"
    )
    await browsing.ask("Hi")
    article = await browsing.answered()
    assert await article.locator(".text :is(img, script, style)").count() == 0
    assert "<script>alert(2)</script>" in await article.locator("> .text").text_content()
    links = article.locator(".text a[href]")
    assert await links.count() == 1
    assert await links.first.get_attribute("href") == "http://example.org/i.png"
    assert await links.first.get_attribute("rel") == "noopener noreferrer"


async def test_reasoning(browsing: Browsing) -> None:
    browsing.will_answer("<think>\nLet me see.\n</think>\n\nFour.")
    await browsing.ask("2 + 2?")
    article = await browsing.answered()
    thoughts = article.locator("details.reasoning")
    assert await thoughts.get_attribute("open") is None
    assert (await thoughts.locator(".text").text_content()).strip() == "Let me see."
    assert (await article.locator("> .text").text_content()).strip() == "Four."
    await browsing.page.click("#tint")
    await article.locator("> .tinted").wait_for()
    assert await article.locator("> .text").text_content() == "Four."


async def test_reasoning_fields(browsing: Browsing) -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm", "reasoning": "Hm"}]
    deltas += [{"content": "Yes"}]
    chunks = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    await _answer_with(browsing, chunks)
    await browsing.ask("Really?")
    article = await browsing.answered()
    assert (await article.locator("details .text").text_content()).strip() == "Hm"
    assert (await article.locator("> .text").text_content()).strip() == "Yes"


async def test_synthetic_acceptance_is_labelled(browsing: Browsing) -> None:
    figures = {
        "mean_acceptance_length": 3.25,
        "draft_acceptance_rate": 0.75,
        "acceptance_histogram": [1, 0, 0, 3],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 9,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
        "synthetic": True,
    }
    delta = {"index": 0, "delta": {"content": "Noise"}, "finish_reason": "length"}
    usage = {"prompt_tokens": 3, "completion_tokens": 14, "total_tokens": 17}
    last = {"choices": [], "usage": usage, "metrics": {"speculative_decoding": figures}}
    await _answer_with(browsing, [{"choices": [delta]}, last])
    await browsing.page.click("#tint")
    await browsing.ask("Go")
    article = await browsing.answered()
    assert "synthetic acceptance" in await article.locator(".strip").text_content()
    assert "3.25 tokens/step" in await article.locator(".strip").text_content()
    caption = await article.locator("figcaption").text_content()
    assert caption == "9 of 12 drafts accepted (75 %) in 4 speculative steps, by chance (synthetic)"
    assert "limit of tokens" in await article.locator(".note").text_content()


async def _answer_with(browsing: Browsing, chunks: list[Any]) -> None:
    """What other servers may send, or this one in another state: line ends and pings included."""
    events = "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
    body = f": ping\n\n{events}data: [DONE]\n\n"
    await browsing.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )


async def test_enter_key(browsing: Browsing) -> None:
    page = browsing.page
    browsing.will_answer("Fine")
    await page.fill("#prompt", "一")
    for init in ("isComposing: true", "keyCode: 229"):
        await page.evaluate(
            "document.querySelector('#prompt').dispatchEvent(new KeyboardEvent('keydown',"
            f" {{key: 'Enter', bubbles: true, cancelable: true, {init}}}))"
        )
    assert await browsing.count(".message") == 0
    await page.press("#prompt", "Shift+Enter")
    await page.keyboard.type("二")
    assert await page.input_value("#prompt") == "一\n二"
    await page.press("#prompt", "Enter")
    await browsing.answered()
    assert await browsing.text(".bubble") == "一\n二"


async def test_settings(browsing: Browsing) -> None:
    page = browsing.page
    browsing.will_answer("Yes")
    await page.click("#open-settings")
    for name, value in {
        "system": "Be brief",
        "temperature": "0.3",
        "seed": "5",
        "top_p": "7",
    }.items():
        await page.fill(f"#settings [name={name}]", value)
    await page.fill("#settings [name=max_tokens]", "9")
    await page.keyboard.press("Escape")
    await page.reload()
    await browsing.ask_and_wait("Hi")
    (submitted,) = browsing.engine.submitted
    params = submitted.params
    assert (params.temperature, params.seed, params.max_tokens) == (0.3, 5, 9)
    assert params.top_p == 1.0  # 7 is out of range: never sent
    assert "Be brief" in browsing.tokenizer.decode(submitted.prompt_token_ids)


async def test_sticks_to_the_end_unless_scrolled(browsing: Browsing) -> None:
    page, more = browsing.page, asyncio.Event()
    steps = browsing.will_answer("line\n\n" * 60)
    half = len(steps) // 2
    browsing.engine.steps = [*steps[:half], more, *steps[half:]]
    distance = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(scroller)"
    await browsing.ask("Go on")
    await page.wait_for_function("() => scroller.scrollHeight > 1.3 * scroller.clientHeight")
    await page.wait_for_function(f"() => {distance} < 2")
    await page.mouse.move(700, 300)
    await page.mouse.wheel(0, -300)
    await page.wait_for_function(f"() => {distance} > 200")
    top = await page.evaluate("scroller.scrollTop")
    more.set()
    await browsing.answered()
    assert abs(await page.evaluate("scroller.scrollTop") - top) < 2
    await page.click("#to-bottom")
    await page.wait_for_function(f"() => {distance} < 2")
    assert await page.locator("#to-bottom").is_hidden()


async def test_theme(browsing: Browsing) -> None:
    page = browsing.page
    paper = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(paper)
    await page.click("#theme")
    dark = await page.evaluate(paper)
    assert dark != light
    await page.reload()
    assert await page.evaluate(paper) == dark
    await page.click("#theme")
    assert await page.evaluate(paper) == light
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate(paper) == dark


WIDER_THAN_THE_PAGE = """[...document.querySelectorAll('#thread *')]
    .filter((e) => !e.closest('pre, table') && e.getBoundingClientRect().right > innerWidth)
    .map((e) => e.className)"""


async def test_narrow(browsing: Browsing) -> None:
    page = browsing.page
    await page.set_viewport_size({"width": 390, "height": 844})
    browsing.will_answer(TEXT + "| a | b |\n|---|---|\n" + "| wide | cells |\n" * 3 + "x" * 300)
    await browsing.ask_and_wait("Hi " + "long" * 60)
    for _ in range(2):
        assert await page.evaluate("document.documentElement.scrollWidth") == 390
        assert await page.evaluate(WIDER_THAN_THE_PAGE) == []
        await page.click("#tint")
    assert not await page.locator("#sidebar").is_visible()
    await page.click("#open-sidebar")
    await page.locator(".conversation").click()
    assert await page.get_attribute("#open-sidebar", "aria-expanded") == "false"
