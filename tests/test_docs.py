"""The pages hold together: links resolve, commands parse, names exist, examples can be read."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import attrs
import pytest

from trio_mq.cli import options, tree
from trio_mq.cli.options import SERVE
from trio_mq.config import load
from trio_mq.config.known import REFUSED
from trio_mq.config.settings import catalogue
from trio_mq.protocol import bodies, headers, jsondialect
from trio_mq.protocol.names import wire_name

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GENERATED = {"settings.md", "cli.md", "exit-codes.md", "request-codes.md", "client-api.md"}
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [page for page in PAGES if page.name not in GENERATED]
TEXTS = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)


@attrs.frozen
class Fence:
    """A block of code in a page."""

    page: Path
    language: str
    text: str


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def fences(language: str, pages: list[Path] = TEXTS) -> list[Fence]:
    """All blocks of one language, without the blanks that a list puts before them."""
    found = []
    for page in pages:
        for indent, name, body in FENCE.findall(text_of(page)):
            if name == language:
                lines = [line.removeprefix(indent) for line in body.splitlines()]
                found.append(Fence(page, language, "\n".join(lines) + "\n"))
    return found


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", text_of(page))


def inline_code(page: Path) -> list[str]:
    return INLINE.findall(prose(page))


@cache
def anchors(page: Path) -> set[str]:
    """The names that headings of a page get, as code hosts make them."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", text_of(page))):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


# -- links and pages


@pytest.mark.parametrize("page", TEXTS, ids=relative)
def test_relative_links_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_listed_once_in_the_index() -> None:
    links = LINK.findall(prose(DOCS / "index.md"))
    listed = {(DOCS / link).resolve() for link in links if not link.startswith("http")}
    assert set(PAGES) - {DOCS / "index.md"} - listed == set()


def test_every_page_has_one_title_and_it_comes_first() -> None:
    wrong = []
    for page in PAGES:
        lines = [line for line in prose(page).splitlines() if line and not line.startswith("<!--")]
        titles = [line for line in lines if line.startswith("# ")]
        if len(titles) != 1 or lines[0] != titles[0]:
            wrong.append(relative(page))
    assert wrong == []


def sources() -> Iterator[Path]:
    for folder in ("trio_mq", "docs", "bench"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from (
        path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "test_docs.py"
    )
    yield from (
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Justfile")
    )


def test_every_page_that_code_mentions_exists() -> None:
    mentioned = {
        (name, relative(path))
        for path in sources()
        for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", text_of(path))
    }
    assert mentioned, "the pattern finds nothing"
    assert sorted(m for m in mentioned if not (ROOT / m[0]).is_file()) == []


def test_format_pages_and_codec_modules_name_each_other() -> None:
    page = text_of(DOCS / "reference" / "store-format.md")
    for module in ("protocol/record.py", "protocol/layout.py"):
        assert module in page
    assert "docs/reference/store-format.md" in text_of(ROOT / "trio_mq/protocol/record.py")


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """A path from the root, or the end of one in the package, as in a table of modules."""
    ours = [f"/{relative(path)}" for path in (ROOT / "trio_mq").rglob("*.py")]
    missing = [
        name
        for name in inline_code(page)
        if re.fullmatch(r"[\w./-]+\.py", name)
        and not (ROOT / name).is_file()
        and not any(path.endswith(f"/{name}") for path in ours)
    ]
    assert missing == []


# -- commands

PLACEHOLDERS = {"HOST:PORT": "127.0.0.1:1", "KEY=VALUE": "fileReservedTime=1", "DIR": "d", "FILE": "f",
                "HOST[:PORT]": "localhost:1", "ADDR": "127.0.0.1:1"}  # fmt: skip


def commands() -> list[tuple[str, str]]:
    """Every command line that starts with `trio-mq`, with its page."""
    found = []
    for fence in fences("sh"):
        joined = re.sub(r"\\\n\s*", " ", fence.text)
        for line in joined.splitlines():
            parts = [part.strip() for part in re.split(r"&&|(?<!\|)\|(?!\|)|;(?![^\"]*\")", line)]
            found += [(relative(fence.page), part) for part in parts if part.startswith("trio-mq ")]
    for fence in fences("ini"):
        found += [
            (relative(fence.page), "trio-mq" + rest)
            for rest in re.findall(r"^ExecStart=\S*/trio-mq(.*)$", fence.text, re.MULTILINE)
        ]
    for fence in fences("dockerfile"):
        for line in re.findall(r"^ENTRYPOINT (.*)$", fence.text, re.MULTILINE):
            found.append((relative(fence.page), shlex.join(json.loads(line))))
    for page in WRITTEN:
        for code in inline_code(page):
            if re.match(r"trio-mq (serve|config)\b", code):
                found.append((relative(page), code))
    return found


def test_there_are_commands_to_look_at() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_are_legal(page: str, line: str) -> None:
    """The real parser takes the options, and the real settings their values."""
    words = shlex.split(line)
    if words[1:] in (["--version"], ["--help"]):
        return
    arguments, table = split(words)
    values = options.parse_plain(arguments, table)
    assert values is not None, f"{page}: the parser does not know {line}"
    load(overrides=values.get("--set", ()), flags=options.flags(values))


def split(words: list[str]) -> tuple[list[str], Sequence[options.Option]]:
    """The arguments of a command line, and the table that its verb has for them."""
    for verb in tree.verbs():
        path = verb.path.split()
        if words[1 : 1 + len(path)] == path:
            return words[1 + len(path) :], verb.table
    raise AssertionError(f"no verb is called like that: {words}")


def option_mentions() -> Iterator[tuple[str, str]]:
    for page in WRITTEN:
        for code in inline_code(page):
            ours = not re.match(r"--(broker apache|sparse)", code) and page.name != "measure.md"
            if code.startswith("--") and ours:
                yield relative(page), code


def test_options_in_the_text_are_legal() -> None:
    wrong = []
    for page, code in option_mentions():
        words = [PLACEHOLDERS.get(word, word) for word in code.split()]
        if options.parse_plain(words, SERVE) is None and words[0] not in known_options():
            wrong.append((page, code))
    assert wrong == []


def known_options() -> set[str]:
    return {option.name for verb in tree.verbs() for option in verb.table} | {
        "--version",
        "--help",
        "--rocketmq-mode",  # of the pytest plugin
    }


# -- names

CAMEL = re.compile(r"(?!yyyy)[a-z]+(?:[A-Z0-9][a-z0-9]*)+")
OTHER_NAMES = {
    # fields of the record in the words of Apache's classes
    "totalSize", "bodyCRC", "physicalOffset", "storeHost",
    # fields of state files
    "dataVersion", "forbiddenTable",
    # fields of message lines
    "logOffset", "messageId", "bornHost", "reconsumeTimes", "preparedTransactionOffset",
    "propertiesBase64", "bodyBase64", "bodyText", "bodyHex", "bodyDecompressed", "bodyProblem",
    # settings of Apache's broker and clients
    "enabledAppendPropCRC", "pollNameServerInterval", "commitLogRecoverMaxNum",
    "enablePopBufferMerge", "popConsumerKVServiceEnable", "useSeparateRetryQueue",
}  # fmt: skip


@cache
def settings_keys() -> frozenset[str]:
    """Keys that have an effect; of those that only Apache acts on, the ones that stop a start."""
    ours = {key for info in catalogue() for key in (info.meta.key, *info.meta.aliases)}
    return frozenset(ours | REFUSED.keys())


@cache
def wire_names() -> frozenset[str]:
    """Every field of a header or of a body."""
    classes = [
        value
        for module in (headers, bodies)
        for value in map(partial(getattr, module), dir(module))
        if isinstance(value, type) and attrs.has(value)
    ]
    return frozenset(
        {wire_name(field) for cls in classes for field in attrs.fields(cls)}
        | {"extFields", "serializeTypeCurrentRPC"}
    )


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_settings_and_fields_in_the_text_exist(page: Path) -> None:
    """A word in camel case is a setting or a name on the wire; a misspelt one is neither."""
    known = settings_keys() | wire_names() | OTHER_NAMES
    words = {code.partition("=")[0] for code in inline_code(page)}
    unknown = sorted(word for word in words if CAMEL.fullmatch(word) and word not in known)
    assert unknown == []


def test_properties_files_in_the_text_are_legal(tmp_path: Path) -> None:
    blocks = fences("properties")
    assert blocks
    for number, fence in enumerate(blocks):
        path = tmp_path / f"{number}.conf"
        path.write_text(fence.text)
        settings = load(file=str(path), strict=True)
        assert settings.notices == () or {n.kind for n in settings.notices} == {"note"}


# -- examples


@pytest.mark.parametrize("fence", fences("json"), ids=lambda fence: fence.page.name)
def test_json_examples_can_be_read(fence: Fence) -> None:
    assert jsondialect.loads(fence.text)


@pytest.mark.parametrize("fence", fences("python"), ids=lambda fence: fence.page.name)
def test_python_examples_compile(fence: Fence) -> None:
    ast.parse(fence.text)
