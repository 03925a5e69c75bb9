"""The SQL92 expressions by which consumers filter: a text in, a decision about a message's properties out.

Called by the broker's filters. Pure: no IO, no trio, no clock. The language and its answers are those of Apache's
module ``filter`` (SelectorParser and the expression classes), including where they surprise; ``docs/explanation/
filters.md`` tells how. :func:`compile_expression` is imported by those who need it from :mod:`trio_mq.sql92.parse`,
since the parser behind it takes a moment to load.
"""
