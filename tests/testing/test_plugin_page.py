"""docs/howto/pytest.md: its examples are one project, and all of their tests pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "pytest.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INI = """
[pytest]
filterwarnings = error
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
"""


def test_every_block_is_an_example_with_a_name_of_its_own():
    assert PAGE.count("```python\n") == len(EXAMPLES) == len(dict(EXAMPLES))


@pytest.mark.slow
def test_all_examples_pass(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, text in EXAMPLES:
        (pytester.path / name).write_text(text, "utf-8")
    pytester.makeini(INI)
    done = pytester.runpytest_subprocess("-p", "trio_mq.testing.pytest", "--durations=5")
    tests = sum(len(re.findall(r"def test_", text)) for _, text in EXAMPLES)
    done.assert_outcomes(passed=tests)


@pytest.mark.parametrize(
    "line", re.findall(r"^rocketmq_settings = (.*)$", PAGE, re.MULTILINE), ids=["settings"]
)
def test_settings_in_the_file_are_those_of_a_broker(line):
    import ast

    from trio_mq.testing.settings import settings_of

    given = dict(one.split("=", 1) for one in ast.literal_eval(line))
    assert settings_of("/store", given).store.max_message_size == 65536
