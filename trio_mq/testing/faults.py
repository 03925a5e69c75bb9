"""Faults by request code: what a test asks a broker to do wrong, and when it is done.

In: request codes and what to do with the next requests that have them. Out: for a test, :class:`Faults` with one method
for each kind and a count of hits; for the broker, the rule that a request has met (:meth:`RuleBook.met`). No waiting,
no network: :mod:`.faulty` does what a rule says, and :mod:`.process` takes rules to a broker in another process.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from trio_mq.errors import ConfigError
from trio_mq.protocol.codes import RequestCode, ResponseCode

#: Codes that ask for the same thing in another form: clients of different ages use different ones.
VARIANTS: Final = (
    frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2}),
    frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}),
    frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}),
    frozenset({RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE}),
    frozenset({RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST}),
)
DEFAULT_REMARK: Final = "a fault that this test asked for"


class Kind(enum.StrEnum):
    """What becomes of a request."""

    ERROR = "error"
    DELAY = "delay"
    DROP_REPLY = "drop_reply"
    CLOSE = "close"


@attrs.frozen
class Rule:
    """What happens to requests with one of `codes`, the next `times` ones or, with None, all of them.

    `code` and `remark` are those of the answer of an ERROR, `delay_s` is the time that a DELAY holds a request back.
    """

    kind: Kind
    codes: frozenset[int]
    times: int | None = 1
    code: int = ResponseCode.SYSTEM_ERROR
    remark: str = DEFAULT_REMARK
    delay_s: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.times is not None and self.times < 1:
            raise ConfigError(f"times: {self.times} is below 1; None stands for all requests")
        if self.delay_s < 0:
            raise ConfigError(f"seconds: {self.delay_s} is no time")

    def as_fields(self) -> dict[str, Any]:
        """For a line of JSON."""
        return {**attrs.asdict(self), "codes": sorted(self.codes), "code": int(self.code)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Rule:
        """From a line of JSON."""
        changed = {"kind": Kind(fields["kind"]), "codes": frozenset(fields["codes"])}
        return cls(**{**fields, **changed})


class Rules(Protocol):
    """Where rules are kept: here, or in the process of the broker."""

    def add(self, rule: Rule) -> int:
        """Add a rule; its number."""
        ...

    def remove(self, number: int) -> None:
        """Take a rule off; nothing happens when it is off already."""
        ...

    def hits(self, number: int) -> int:
        """How many requests have met a rule so far, also when it is off."""
        ...

    def clear(self) -> None:
        """Take all rules off."""
        ...


class RuleBook:
    """The rules of one broker. Of several for one request the oldest counts."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule] = {}
        self._hits: list[int] = []

    @property
    def active(self) -> bool:
        """Whether there is any rule."""
        return bool(self._rules)

    def add(self, rule: Rule) -> int:
        """See :class:`Rules`."""
        self._hits.append(0)
        number = len(self._hits) - 1
        self._rules[number] = rule
        return number

    def remove(self, number: int) -> None:
        """See :class:`Rules`."""
        self._rules.pop(number, None)

    def hits(self, number: int) -> int:
        """See :class:`Rules`."""
        return self._hits[number]

    def clear(self) -> None:
        """See :class:`Rules`."""
        self._rules.clear()

    def met(self, code: int) -> Rule | None:
        """The rule for a request that has just arrived; it is counted, and goes with its last time."""
        for number, rule in self._rules.items():
            if code in rule.codes:
                self._hits[number] += 1
                if self._hits[number] == rule.times:
                    del self._rules[number]
                return rule
        return None


@attrs.frozen
class Fault:
    """A fault that was asked for."""

    _rules: Rules
    _number: int

    @property
    def hits(self) -> int:
        """How many requests have met it so far."""
        return self._rules.hits(self._number)

    def remove(self) -> None:
        """Let requests pass from now on."""
        self._rules.remove(self._number)


Request = int | str
"""A request code: a number, a member of RequestCode, or its name."""


def codes_of(request: Request | Iterable[Request], *, exact: bool = False) -> frozenset[int]:
    """The codes that are meant, with their variants unless `exact`; ConfigError for a name that is none."""
    if not isinstance(request, int | str):
        return frozenset().union(*(codes_of(one, exact=exact) for one in request))
    code = _named(request) if isinstance(request, str) else int(request)
    if exact:
        return frozenset({code})
    return next((frozenset(map(int, some)) for some in VARIANTS if code in some), frozenset({code}))


def _named(name: str) -> int:
    if name.isdecimal():
        return int(name)
    wanted = name.strip().upper()
    if wanted in RequestCode.__members__:
        return int(RequestCode[wanted])
    near = difflib.get_close_matches(wanted, RequestCode.__members__, n=1)
    hint = f"; is {near[0]} meant?" if near else "; docs/reference/request-codes.md lists them"
    raise ConfigError(f"{name!r} is no request code{hint}")


class Faults:
    """What a broker and its name server shall do wrong, by request code.

    `request` is a code, its name, or several of them. A code stands for its variants too (SEND_MESSAGE for
    SEND_MESSAGE_V2; docs/howto/pytest.md lists them), unless `exact`. `times` is the number of requests that meet the
    fault, None for all until :meth:`clear`. Of several faults for one request the oldest counts.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def error(
        self,
        request: Request | Iterable[Request],
        *,
        code: int = ResponseCode.SYSTEM_ERROR,
        remark: str = DEFAULT_REMARK,
        times: int | None = 1,
        exact: bool = False,
    ) -> Fault:
        """Answer with an error code, and do nothing else."""
        return self._add(Rule(Kind.ERROR, codes_of(request, exact=exact), times, code, remark))

    def delay(
        self,
        request: Request | Iterable[Request],
        seconds: float,
        *,
        times: int | None = 1,
        exact: bool = False,
    ) -> Fault:
        """Handle the request after `seconds`; what comes after it over the same connection overtakes it."""
        codes = codes_of(request, exact=exact)
        return self._add(Rule(Kind.DELAY, codes, times, delay_s=seconds))

    def drop_reply(
        self, request: Request | Iterable[Request], *, times: int | None = 1, exact: bool = False
    ) -> Fault:
        """Handle the request, and do not answer it."""
        return self._add(Rule(Kind.DROP_REPLY, codes_of(request, exact=exact), times))

    def close(
        self, request: Request | Iterable[Request], *, times: int | None = 1, exact: bool = False
    ) -> Fault:
        """Close the connection in place of handling the request."""
        return self._add(Rule(Kind.CLOSE, codes_of(request, exact=exact), times))

    def clear(self) -> None:
        """Let all requests pass again."""
        self._rules.clear()

    def _add(self, rule: Rule) -> Fault:
        return Fault(self._rules, self._rules.add(rule))
