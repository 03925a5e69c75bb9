"""Client tests run twice: under Trio and under asyncio."""

from __future__ import annotations

import functools
import inspect

import anyio
import pytest

LIMIT_S = 60


def both(test=None, *, limit_s: float = LIMIT_S, backends=("trio", "asyncio")):
    """Run an async test under either backend; its fixtures are plain ones. ``@both`` or ``@both(limit_s=120)``.

    A slow test of what does not differ between them may name one of the `backends`.
    """
    if test is None:
        return functools.partial(both, limit_s=limit_s, backends=backends)

    @functools.wraps(test)
    def run(*args, backend, **kwargs):
        async def main():
            with anyio.fail_after(limit_s):
                await test(*args, **kwargs)

        anyio.run(main, backend=backend)

    signature = inspect.signature(test)
    parameters = [
        *signature.parameters.values(),
        inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY),
    ]
    run.__signature__ = signature.replace(parameters=parameters)
    return pytest.mark.parametrize("backend", backends)(run)


async def until(condition, limit_s: float = 20.0) -> None:
    """Wait for something that another process does."""
    with anyio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110  (nobody here could tell)
            await anyio.sleep(0.02)
