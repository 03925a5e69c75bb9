"""Our evaluator of SQL92 expressions against Apache's own: the kept table, and expressions made at random."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trio_mq.protocol.properties import encode
from trio_mq.sql92.errors import Sql92Error
from trio_mq.sql92.parse import compile_expression

from .drivers import Driver
from .filter_table import TABLE, answers, lines


def test_the_table_is_what_apaches_evaluator_says(java_driver: Driver) -> None:
    assert TABLE.read_text("utf-8").splitlines() == lines(java_driver)


def ours(expression: str, messages: list[dict[str, str]]) -> str:
    """As the table has it."""
    try:
        made = compile_expression(expression)
    except Sql92Error:
        return "error"
    return "".join("01"[made.accepts(encode(one))] for one in messages)


NAMES = st.sampled_from(["a", "b", "c", "none", "TAGS"])
TEXTS = st.sampled_from(
    ["'x'", "'1'", "'2.5'", "'true'", "''", "'it''s'", "'\u20ac'", "'NaN'", "' 1 '"]
)
NUMBERS = st.one_of(
    st.integers(0, 3).map(str),
    st.sampled_from(
        ["2.5", "1.0", "0.0", "1e3", "2147483648", "9223372036854775808", "3L", ".5", "007"]
    ),
)
VALUES = st.one_of(
    NAMES,
    NAMES,
    NUMBERS,
    TEXTS,
    st.sampled_from(["TRUE", "FALSE", "NULL", "-a", "-1", "+b", "- -2.5"]),
)
SIGNS = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "= "])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    both = st.sampled_from(["AND", "OR", "and", "=", "<>"])
    return st.one_of(
        st.tuples(inner, both, inner).map(" ".join),
        inner.map("({})".format),
        inner.map("NOT {}".format),
        inner.map("NOT ({})".format),
        inner.map("-{}".format),
        inner.map("{} IS NULL".format),
        inner.map("({}) IS NOT NULL".format),
        st.tuples(inner, st.sampled_from(["extra", ")", "+ 1", "NOT", "/* x */", "--"])).map(
            " ".join
        ),
    )


NOT = st.sampled_from(["", "NOT "])
SEARCHES = st.sampled_from(["CONTAINS", "STARTSWITH", "endswith"])
CONDITIONS = st.recursive(
    st.one_of(
        VALUES,
        st.tuples(VALUES, SIGNS, VALUES).map(" ".join),
        st.tuples(VALUES, SIGNS, VALUES).map(" ".join),
        st.tuples(VALUES, NOT, VALUES, VALUES).map(lambda p: "{} {}BETWEEN {} AND {}".format(*p)),
        st.tuples(VALUES, NOT, st.lists(TEXTS, max_size=6)).map(
            lambda p: f"{p[0]} {p[1]}IN ({','.join(p[2])})"
        ),
        st.tuples(VALUES, NOT, SEARCHES, TEXTS).map(lambda p: "{} {}{} {}".format(*p)),
        st.tuples(VALUES, st.sampled_from(["IS NULL", "IS NOT NULL", "is", "NOT"])).map(" ".join),
    ),
    _larger,
    max_leaves=6,
)
TOKENS = st.lists(
    st.sampled_from(
        [
            *"ab=<(),+-.'1\n",
            *("<>", ">=", "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "CONTAINS"),
            *("'x'", "2.5", "--", "/*", "*/"),
        ]
    ),
    max_size=8,
).map(" ".join)
PROPERTY = st.one_of(
    st.sampled_from(
        [
            "x",
            "1",
            "2",
            "2.5",
            "true",
            "TRUE",
            "it's",
            "\u20ac",
            "NaN",
            " 1 ",
            "1.0",
            "0x1p1",
            "3000000000",
        ]
    ),
    st.integers(-3, 3).map(str),
    st.text("0123456789+-.eEdfxp_ \u0661\uff12", min_size=1, max_size=5),
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "TAGS"]), PROPERTY), min_size=12, max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(st.one_of(CONDITIONS, CONDITIONS, TOKENS), min_size=60, max_size=60), MESSAGES)
def test_any_expression_has_apaches_answers(
    java_driver: Driver, expressions: list[str], messages: list[dict[str, str]]
) -> None:
    """60 times 60 expressions about 12 messages each."""
    theirs = answers(java_driver, expressions, messages)
    mine = [ours(expression, messages) for expression in expressions]
    differ = [
        (expression, apache, own)
        for expression, apache, own in zip(expressions, theirs, mine, strict=True)
        if apache != own
    ]
    assert differ == []
