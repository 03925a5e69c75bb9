"""Shared by the tests of outbound links: the same test under Trio and under asyncio."""

import anyio
import pytest
from trio.testing import MockClock


@pytest.fixture(params=["trio", "asyncio"])
def run_on(request):
    """Runs an async function without arguments; under Trio on a clock that jumps.

    Under asyncio time is real, so these tests wait for hundredths of a second at most. Tests with
    real sockets need `real_time`, for a mock clock jumps while the kernel works.
    """

    def run(main, real_time=False):
        options = {}
        if request.param == "trio" and not real_time:
            options["clock"] = MockClock(autojump_threshold=0)
        return anyio.run(main, backend=request.param, backend_options=options)

    return run
