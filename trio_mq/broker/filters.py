"""Filters of subscriptions: which messages of a queue a consumer gets.

In: expression type and expression, from a pull, a pop, a heartbeat or a client's check. Out: a :class:`MessageFilter`,
or a refusal that says what is wrong. Called by the processors of pull, pop and notification; held requests keep
the filter and ask it about arrivals. Rules: Apache ExpressionMessageFilter, ExpressionForRetryMessageFilter,
ConsumerFilterManager, FilterAPI.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trio_mq.broker.subscriptions import is_tag_type, parse_tags
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import SubscriptionData
from trio_mq.protocol.codes import ResponseCode
from trio_mq.sql92.errors import Sql92Error
from trio_mq.store.disk import Disk

if TYPE_CHECKING:
    from trio_mq.sql92.parse import Filter

log = logging.getLogger("trio_mq.broker.filters")

SQL_TYPE: Final = "SQL92"
"""Expression type of a filter by properties."""

CACHED_CHARACTERS: Final = 256 * 1024
"""Characters of all expressions that are kept compiled: thousands of usual ones, few of the longest, some 20 MB."""

PREPARE_AFTER_S: Final = 1.0
"""The start has other things to do."""

Accepts = Callable[[bytes], bool]


@attrs.frozen
class MessageFilter:
    """Which messages pass: those with a tags code in `codes` whose raw properties `accepts` takes; None takes all."""

    codes: Container[int] | None = None
    accepts: Accepts | None = None

    def matches(self, tags_code: int, properties: bytes) -> bool:
        """Whether a message passes, by the tags code of its queue entry and its raw properties."""
        if self.codes is not None and tags_code not in self.codes:
            return False
        return self.accepts is None or self.accepts(properties)


EVERYTHING: Final = MessageFilter()


class Filters:
    """Makes filters, and keeps what it took time to make: expressions compiled, or found wrong."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._kept: OrderedDict[str, Accepts | Sql92Error] = OrderedDict()
        self._characters = 0

    def of(self, expression_type: str | None, expression: str | None) -> MessageFilter:
        """The filter of a subscription.

        :class:`RequestRefused`: 23 when the expression cannot be used, with the place in it; 1 when filters by
        properties are off.
        """
        if is_tag_type(expression_type):
            tags = parse_tags(expression)
            return EVERYTHING if tags.everything else MessageFilter(codes=tags.codes)
        if not self._settings.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}: it has "
                "enablePropertyFilter=false; set it to true, subscribe by tags, or filter in the consumer",
            )
        if expression_type != SQL_TYPE:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"there are no filters of type {expression_type}; there are TAG and {SQL_TYPE}",
            )
        made = self._compiled(expression or "")
        if isinstance(made, Sql92Error):
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"the {SQL_TYPE} expression cannot be used: {made}",
            )
        return MessageFilter(accepts=made)

    def of_retries(self, subscription: Callable[[str], SubscriptionData | None]) -> MessageFilter:
        """The filter of a group's retry topic with ``filterSupportRetry``: each message goes by the topic it was for.

        `subscription` tells what the group subscribes of a topic. What it does not subscribe by properties passes.
        """

        def accepts(properties: bytes) -> bool:
            topic = props.get(properties, b"RETRY_TOPIC")
            known = None if topic is None else subscription(str(topic, "utf-8", "replace"))
            if known is None or known.expression_type != SQL_TYPE:
                return True
            made = self._compiled(known.sub_string)
            return isinstance(made, Sql92Error) or made(properties)

        return MessageFilter(accepts=accepts)

    def _compiled(self, expression: str) -> Accepts | Sql92Error:
        kept = self._kept
        made = kept.get(expression)
        if made is not None:
            kept.move_to_end(expression)
            return made
        # The parser takes a moment to load, which a broker without such filters never needs.
        from trio_mq.sql92.parse import MAX_CHARACTERS, compile_expression

        try:
            made = _told(expression, compile_expression(expression))
        except Sql92Error as error:
            made = error.with_traceback(None)
        if len(expression) > MAX_CHARACTERS:
            return made  # refused at once the next time, too
        kept[expression] = made
        self._characters += len(expression)
        while self._characters > CACHED_CHARACTERS:
            dropped, _ = kept.popitem(last=False)
            self._characters -= len(dropped)
        return made

    async def prepare(self, disk: Disk) -> None:
        """Load the parser in a worker thread, a moment after the start, if it may be wanted."""
        if self._settings.enable_property_filter:
            await trio.sleep(PREPARE_AFTER_S)
            await disk.run(_load)


def _told(expression: str, made: Filter) -> Accepts:
    if made.ignored_from is not None:
        log.warning(
            "the %s expression %.200r counts up to character %d only; what follows is no part of it (there is "
            "no arithmetic and no LIKE, and Apache's brokers ignore it, too)",
            *(SQL_TYPE, expression, made.ignored_from - 1),
        )
    return made.accepts


def _load() -> None:
    import trio_mq.sql92.parse  # noqa: F401  # loading is what it is for
