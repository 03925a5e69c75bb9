"""A store without a broker: a start rehearsed, and a recovery carried out. Joins recovery with the broker's tables."""

from __future__ import annotations

from trio_mq.offline.carryout import recover_offline as recover_offline
from trio_mq.offline.rehearsal import Rehearsal as Rehearsal
from trio_mq.offline.rehearsal import rehearse as rehearse
from trio_mq.offline.wanted import Wanted as Wanted
