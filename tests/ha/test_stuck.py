"""The alarm of a slave that gets nothing though its master has more."""

import pytest
import trio

from trio_mq.ha.states import LinkState, StateWatch
from trio_mq.ha.stuck import StuckWatch


class Slave:
    def __init__(self, end=100, master_end=200, state=LinkState.TRANSFER):
        self.end, self.master_end = end, master_end
        self.state = StateWatch("a link", state)
        self.watch = StuckWatch(self.state, lambda: self.end, lambda: self.master_end)


async def test_it_is_told_after_a_minute_and_then_every_minute(autojump_clock, caplog):
    slave = Slave()
    async with trio.open_nursery() as nursery:
        await nursery.start(slave.watch.run)
        await trio.sleep(59)
        assert (slave.state.reason, caplog.records) == ("", [])
        slave.state.move(LinkState.TRANSFER, "from there")
        await trio.sleep(2)
        assert "ends at 200 and this one at 100" in slave.state.reason
        assert "empty store" in slave.state.reason
        await trio.sleep(180)
        assert [record.levelname for record in caplog.records] == ["ERROR"] * 4
        # One byte, and all is well.
        slave.end += 1
        await trio.sleep(10)
        assert slave.state.reason == "from there"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("master_end", [None, 0, 100])
async def test_a_master_that_has_no_more_is_none(autojump_clock, caplog, master_end):
    slave = Slave(master_end=master_end)
    for now_s in range(0, 600, 10):
        slave.watch.look(now_s)
    assert not caplog.records


@pytest.mark.parametrize("state", [LinkState.READY, LinkState.SUSPEND])
async def test_without_a_link_there_is_another_reason(autojump_clock, caplog, state):
    slave = Slave(state=state)
    for now_s in range(0, 600, 10):
        slave.watch.look(now_s)
    assert not caplog.records


async def test_a_slave_that_grows_slowly_is_not_stuck(autojump_clock, caplog):
    slave = Slave()
    for now_s in range(0, 600, 10):
        slave.end += now_s % 50 == 0
        slave.watch.look(now_s)
    assert not caplog.records
