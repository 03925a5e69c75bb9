"""Names that follow from other names."""

from __future__ import annotations

from trio_mq.protocol.topics import dlq_topic, pop_retry_topics, retry_topic


def test_retry_topics_and_dead_letters_are_named_as_the_peers_name_them():
    assert retry_topic("G") == "%RETRY%G"
    assert dlq_topic("G") == "%DLQ%G"
    assert pop_retry_topics("T", "G") == ("%RETRY%G_T", "%RETRY%G+T")
