"""What name servers say of the brokers of one name, put together: who is the master, who has the smallest id.

In: answers to registrations, members of the group, notices of a new smallest id, each from one name server. Out: the
master to follow, and what a slave has to know of its group. Pure. Called by :mod:`.register`. Source of the rules:
Apache BrokerController (handleRegisterBrokerResult, syncBrokerMemberGroup, onMinBrokerChange).

Name servers do not talk to each other, so that they may disagree for a while. One that cannot reach the master does
not make it gone as long as another one sees it. The master that is followed stays until a name server changes its
mind, or none knows it any more. Apache takes what the first one answers, and what the last one notices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from trio_mq.broker.role import MASTER_ID
from trio_mq.config import Address


@attrs.frozen
class Master:
    """Where a master is for clients and, if that is known, for slaves."""

    address: Address
    ha_address: Address | None = None


@attrs.define
class _View:
    """What one name server says. `master` None: there is none; `ids` None: it was not asked."""

    master: Master | None = None
    ids: frozenset[int] | None = None


class GroupNews:
    """See the module. `nameservers` are in the order of their weight where they disagree from the beginning."""

    def __init__(self, nameservers: Sequence[Address], own_id: int) -> None:
        self._order = nameservers
        self._own_id = own_id
        self._views: dict[Address, _View] = {}
        #: The last master that each of them named, of those that cannot be reached too.
        self._named: dict[Address, Master] = {}
        #: The master to follow; it stays when nobody knows one any more.
        self.master: Master | None = None
        #: False once all that can be asked said that there is no master.
        self.registered = True

    @property
    def min_id(self) -> int | None:
        """The smallest id that a name server knows; None while none was asked."""
        ids = self._ids()
        return None if ids is None else min(ids, default=self._own_id)

    @property
    def alive(self) -> int | None:
        """How many brokers of this name live, this one included; None while no name server was asked."""
        ids = self._ids()
        return None if ids is None else len(ids | {self._own_id})

    def _ids(self) -> frozenset[int] | None:
        told = [view.ids for view in self._views.values() if view.ids is not None]
        return frozenset().union(*told) if told else None

    # -- what they say

    def answered(self, nameserver: Address, master: Master | None) -> None:
        """A registration was answered."""
        view = self._views.setdefault(nameserver, _View())
        view.master = master
        if view.ids is not None:
            others = view.ids - {MASTER_ID}
            view.ids = others if master is None else others | {MASTER_ID}
        self._weigh(nameserver)

    def has_members(self, nameserver: Address, addresses: Mapping[int, Address]) -> bool:
        """The members of the group; whether the registration has to be repeated to learn of a new master."""
        if not addresses:
            return False  # it has forgotten us, and knows nothing
        view = self._views.setdefault(nameserver, _View())
        view.ids = frozenset(addresses)
        at = addresses.get(MASTER_ID)
        if at is None:
            view.master = None
        self._weigh(nameserver)
        is_news = at is not None and (view.master is None or view.master.address != at)
        return is_news and self._own_id != MASTER_ID

    def noticed(
        self, nameserver: Address, min_id: int, master: Master | None, offline: Address | None
    ) -> bool:
        """The smallest id has changed; `master` is given when that is the master's. Returns as :meth:`has_members`."""
        view = self._views.setdefault(nameserver, _View())
        view.ids = frozenset(i for i in view.ids or () if i > min_id) | {min_id}
        if min_id != MASTER_ID or (view.master is not None and view.master.address == offline):
            view.master = None
        if min_id == MASTER_ID and master is not None:
            view.master = master
        self._weigh(nameserver)
        return min_id == MASTER_ID and (view.master is None or view.master.ha_address is None)

    def unreachable(self, nameserver: Address) -> None:
        """It cannot be asked: what it said before counts only if nobody else can be asked."""
        if len(self._views) > 1 and self._views.pop(nameserver, None) is not None:
            self._weigh(None)

    def _weigh(self, news: Address | None) -> None:
        """See who is the master now; `news` is who has just said something."""
        named = [self._views[at].master for at in self._order if at in self._views]
        known = [master for master in named if master is not None]
        self.registered = bool(known) or not self._views
        if not known:
            return
        told = self._views[news].master if news is not None and news in self._views else None
        if told is not None and news is not None:
            before = self._named.get(news)
            self._named[news] = told
            if before is not None and before != told:
                self.master = told
        if self.master not in known:
            self.master = known[0]
