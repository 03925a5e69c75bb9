"""Expressions and messages whose answers by Apache's own evaluator are kept in ``apache-5.4.0.jsonl``.

Each expression is asked about every message. To be made anew with ``python -m tests.interop.filter_table`` after a
change here; ``tests/interop/test_filters.py`` holds the file against the evaluator.
"""

from __future__ import annotations

MESSAGES: list[dict[str, str]] = [
    {},
    {"a": "1", "b": "2", "s": "x", "TAGS": "A"},
    {"a": "5", "b": "5", "s": "abc", "TAGS": "B", "t": "true"},
    {"a": "-3", "b": "10", "s": "it's", "TAGS": "C", "t": "FALSE"},
    {"a": "abc", "b": "abc", "s": "", "t": "yes"},
    {"a": "3.0", "b": "3", "s": "a b", "region": "hz"},
    {"a": "2147483648", "b": "-2147483648", "s": "1"},
    {"a": "9223372036854775808", "b": "1e3", "s": "5"},
    {"a": " 4 ", "b": " 4.5 ", "s": "ABC"},
    {"a": "NaN", "b": "Infinity", "s": "NaN"},
    {"a": "+7", "b": "0x1p3", "s": "1.5f"},
    {"a": "0", "b": "-0.0", "s": "0.0"},
    {"a": "007", "b": "1_0", "s": "1d"},
    {"a": "\u0665", "b": "\uff11", "s": "\u00e4\u20ac\U0001f600", "t": "TrUe"},
    {"a_1": "1", "$x": "2", "_y": "3", "A": "9", "NOTE": "n", "v": "6"},
    {"a": "1.5", "v": "3", "price": "99.95", "color": "red", "s": "xabcx"},
]

_VALUES = [
    *("0", "1", "5", "-3", "+5", "- -5", "007", "2147483647", "2147483648", "-2147483648"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "5L", "5l", "0L"),
    *("1.5", "3.0", "3.", ".5", "1e3", "1E+3", "5E-1", "0.0", "0e0", "1e400", "1e-400", "4.9E-324"),
    *("'1'", "'5'", "'abc'", "''", "'it''s'", "'x", "TRUE", "false", "NULL", "b", "missing", "-b"),
    *("(1)", "('1')", "(b)", "+b", "NOT b", "b > 1", "(b > 1)", "1_0", "1f", "0x10", "1..5"),
]


def _comparisons() -> list[str]:
    made = [f"a {sign} {value}" for sign in ("=", ">") for value in _VALUES]
    made += [f"{value} = a" for value in _VALUES[::2]]
    made += [f"{value} < a" for value in _VALUES[1::2]]
    made += [f"a {sign} 5" for sign in ("<>", "<", "<=", ">=", "!=", "==", "=>", "><", "< =")]
    made += [f"a {sign} b" for sign in ("=", "<>", "<", "<=", ">", ">=")]
    made += [f"a {sign} missing" for sign in ("=", "<>", "<", ">=")]
    made += [f"missing {sign} a" for sign in ("=", "<>", "<", ">=")]
    made += [
        f"missing {sign} {value}" for sign in ("=", "<>", "<") for value in ("1", "other", "-a")
    ]
    made += ["1 = 1", "1 <> 1", "1 = 1.0", "1 < 2", "2.0 > 1", "'a' = 'a'", "'a' <> 'b'", "1 = '1'"]
    made += [
        "'1' = 1",
        "'x' = 1",
        "1 = 'x'",
        "1 = TRUE",
        "TRUE = 1",
        "TRUE = 'true'",
        "'true' = TRUE",
    ]
    made += ["TRUE = TRUE", "TRUE <> FALSE", "TRUE < FALSE", "NULL = NULL", "NULL <> 1", "1 > NULL"]
    made += [
        "t = TRUE",
        "t = FALSE",
        "t <> TRUE",
        "TRUE = t",
        "FALSE <> t",
        "t > TRUE",
        "t = 'true'",
    ]
    return made


def _logic() -> list[str]:
    atoms = ["a = 1", "missing = 1", "TRUE", "FALSE", "NULL", "a > 'x'", "a > 2", "t"]
    made = [f"{x} AND {y}" for x in atoms[:5] for y in atoms[:5]]
    made += [f"{x} OR {y}" for x in atoms[:5] for y in atoms[:5]]
    made += [f"NOT ({x})" for x in atoms] + [f"NOT {x}" for x in atoms]
    made += ["a = 1 OR a = 5 AND b = 5", "(a = 1 OR a = 5) AND b = 5", "NOT a = 1 AND b = 2"]
    made += ["NOT NOT a = 1", "NOT (NOT (a = 1))", "a = 1 OR b > 1.5", "b > 1.5 OR a = 1"]
    made += ["s = 'x' OR a > 0", "a > 0 OR s = 'x'", "a > 0 AND s = 'abc'", "s = 'abc' AND a > 0"]
    made += ["missing = 1 OR a = 1", "missing = 1 AND a = 1", "NOT (missing = 1 OR a = 1)"]
    made += [
        "NOT (1 = missing)",
        "1 <> missing",
        "a AND b",
        "a OR TRUE",
        "NOT a",
        "NOT missing",
        "a",
    ]
    made += [
        "(a)",
        "TRUE",
        "true",
        "FALSE",
        "NULL",
        "NOT NULL",
        "NOT TRUE",
        "1",
        "'a'",
        "-a",
        "-1",
        "(1)",
    ]
    made += [
        "a = 1 AND 1",
        "1 OR a = 1",
        "'x' OR a = 1",
        "-a OR TRUE",
        "TRUE AND (a)",
        "NOT 1",
        "NOT 'a'",
    ]
    made += ["(a = 1) = (b = 2)", "(a = 1) = TRUE", "TRUE = (a = 1)", "a = (b > 1)", "(b > 1) = a"]
    made += [
        "(b > 1) = 5",
        "5 = (b > 1)",
        "(a = 1) > 1",
        "1 < (a = 1)",
        "a = 1 = 2",
        "a = b = c",
        "1 = 1 = TRUE",
    ]
    made += [
        "-(a = 1) = 1",
        "(a = 1) IS NULL",
        "(missing = 1) IS NULL",
        "-(a > b) IS NULL",
        "-a IS NULL",
    ]
    return made


def _ranges() -> list[str]:
    bounds = [
        "1 AND 5",
        "5 AND 1",
        "1 AND 1",
        "-3 AND 5",
        "5 AND -3",
        "1.5 AND 3",
        "3 AND 1.5",
        "'a' AND 'b'",
    ]
    bounds += [
        "'1' AND '5'",
        "b AND 5",
        "1 AND b",
        "NULL AND 5",
        "1 AND NULL",
        "TRUE AND FALSE",
        "1 AND missing",
    ]
    bounds += [
        "0.5 AND 1e3",
        "1 AND 'x'",
        "(1) AND (5)",
        "+1 AND +5",
        "1L AND 5L",
        "NOT b AND 5",
        "1 AND",
        "1, 5",
    ]
    bounds += ["1 AND 5 AND b = 5", "1 AND 5 OR b = 2", "2147483648 AND 1", "b AND b", "1 OR 5"]
    made = [f"a BETWEEN {bound}" for bound in bounds] + [
        f"a NOT BETWEEN {bound}" for bound in bounds
    ]
    made += [
        "3 BETWEEN 1 AND 5",
        "3 BETWEEN a AND b",
        "'3' BETWEEN 1 AND 5",
        "missing BETWEEN 1 AND 5",
    ]
    made += [
        "missing NOT BETWEEN 1 AND 5",
        "NOT a BETWEEN 1 AND 5",
        "NOT (a BETWEEN 1 AND 5)",
        "v BETWEEN 3 AND 5",
    ]
    made += [
        "TRUE BETWEEN 1 AND 5",
        "a BETWEEN 1 AND 5 BETWEEN 1 AND 2",
        "price BETWEEN 99.9 AND 100.0",
    ]
    return made


def _lists_and_searches() -> list[str]:
    lists = [
        "('1','5')",
        "('A')",
        "()",
        "('1',)",
        "(1,5)",
        "(b)",
        "('1' '5')",
        "('it''s','x')",
        "(NULL)",
        "'1'",
    ]
    lists += [
        "('1','2','3','4','5','6')",
        "(',')",
        "('')",
        "('ABC','abc')",
        "('1', 5)",
        "(('1'))",
        "('1'",
    ]
    made = [f"a IN {x}" for x in lists] + [f"s NOT IN {x}" for x in lists]
    made += [
        "TAGS is not null and TAGS in ('A','B')",
        "TAGS IN ('A','B') OR TAGS IS NULL",
        "missing IN ('1')",
    ]
    made += [
        "missing NOT IN ('1')",
        "NOT missing IN ('1')",
        "NOT a IN ('1')",
        "NOT (a IN ('1'))",
        "(a) IN ('1')",
    ]
    made += [
        "+a IN ('1')",
        "-a IN ('1')",
        "'1' IN ('1')",
        "1 IN ('1')",
        "a IN ('1') IN ('1')",
        "TRUE IN ('TRUE')",
    ]
    for word in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        for wanted in ("'abc'", "'b'", "''", "'it''s'", "'\u20ac'", "1", "a", "NULL", "('abc')"):
            made += [f"s {word} {wanted}", f"s NOT {word} {wanted}"]
        made += [
            f"missing {word} 'x'",
            f"missing NOT {word} 'x'",
            f"NOT missing {word} 'x'",
            f"'xabcx' {word} 'x'",
        ]
        made += [
            f"5 {word} '5'",
            f"a {word} '5' {word} '5'",
            f"NOT (s {word} 'abc')",
            f"s {word} 'a' AND a = 5",
        ]
        made += [f"(a > 1) {word} ''", f"-a NOT {word} '1'", f"(a = 1) {word} 'x'"]
    return made


def _nulls() -> list[str]:
    parts = [
        "a",
        "missing",
        "1",
        "'x'",
        "''",
        "NULL",
        "TRUE",
        "(a)",
        "-a",
        "-1",
        "(a = 1)",
        "(missing = 1)",
        "NOT a",
    ]
    made = [f"{part} IS NULL" for part in parts] + [f"{part} IS NOT NULL" for part in parts]
    made += [
        "NOT missing IS NULL",
        "NOT (missing IS NULL)",
        "a IS NULL OR a = 1",
        "a IS NULL = TRUE",
    ]
    made += [
        "a IS NULL IS NULL",
        "a IS NOT NULL IS NOT NULL",
        "a IS",
        "a IS NOT",
        "a IS 1",
        "a IS NOT 1",
        "a IS TRUE",
    ]
    made += [
        "IS NULL",
        "a is null",
        "a Is nOt NuLl",
        "a ISNULL",
        "a = NULL",
        "NULL = a",
        "a <> NULL",
        "s = ''",
    ]
    return made


def _texts() -> list[str]:
    """Spelling: blanks, comments, names, quotes, and what stands behind a whole expression."""
    made = [
        "",
        " ",
        "\t",
        "a=1",
        "a  =\t1",
        "a\n=\r\n1",
        "a\f= 1",
        "a\u00a0= 1",
        "a\x0b= 1",
        "a = 1 ",
        "\ta = 1",
    ]
    made += [
        "a = 1 -- note",
        "a = 1 -- note\n",
        "-- note\na = 1",
        "a = -- note\n1",
        "a = --1",
        "a = - - 1",
        "a = --1\n",
    ]
    made += [
        "a = ---5",
        "-- only",
        "-- only\n",
        "a = /* note */ 1",
        "/**/a = 1",
        "/* * / */ a = 1",
        "/***/ a = 1",
    ]
    made += [
        "a = 1 /* open",
        "/*/ a = 1",
        "a /* b */ /* c */ = 1",
        "a = 1 -- x\r AND a = 2",
        "a = 1--\r\n AND a = 2",
    ]
    made += [
        "a_1 = 1",
        "$x = 2",
        "_y = 3",
        "A = 9",
        "a = 9",
        "NOTE = 'n'",
        "note = 'n'",
        "NOT NOTE = 'n'",
        "a-1 = 1",
    ]
    made += [
        "a.b = 1",
        "a$ = 1",
        "1a = 1",
        "\u00e4 = 1",
        "a\u0131s null",
        "\u017f = 'x'",
        "a \u0130N ('1')",
        "select = 1",
    ]
    made += [
        '"a" = 1',
        'a = "1"',
        "a = 'x' 'y'",
        "s = 'it''s'",
        "s = 'it'",
        "s = ''''",
        "s = 'a b'",
        "s = 'A'",
    ]
    made += [
        "s = '\u00e4\u20ac\U0001f600'",
        "s = 'a\nb'",
        "s LIKE 'a%'",
        "s LIKE 'x'",
        "a LIKE",
        "s = 'abc' ESCAPE 'x'",
    ]
    made += [
        "a = 1 + 2",
        "a + 1 = 2",
        "a * 2 = 2",
        "a = 1 * 2",
        "a / 1 = 1",
        "a % 2 = 1",
        "a = 1 - 1",
        "a - 1",
        "a = 5 5",
    ]
    made += [
        "a = 1 b = 2",
        "a = 1)",
        "a = 1 (",
        "(a = 1",
        "((a = 1))",
        "a = 1 ,",
        "a = 1 ;",
        "a = 1 #",
        "a = 1 'open",
    ]
    made += [
        "a = 1 TRUE",
        "a = 1 NULL",
        "a = 1 IN",
        "a = 1 NOT",
        "a = 1 NOT b",
        "a = 1 AND",
        "a = 1 OR",
        "AND a = 1",
    ]
    made += [
        "a = 1 AND AND b = 2",
        "a = ",
        "= 1",
        "a",
        "a b",
        "a b = 1",
        "(a) b",
        "a NOT",
        "a NOT b",
        "NOT",
        "()",
        "(a",
    ]
    made += [
        "a IS NULL > 5",
        "a IN ('1') > 5",
        "a = 1 > 5",
        "a > 1 > 5",
        "a = 1 x ;",
        "a = 1 x 'y",
        "a = 1 x -- y",
    ]
    made += [
        "a = 1 || a = 5",
        "a = 1 && b = 2",
        "a and b = 2",
        "a = 1 aNd b = 2",
        "a = 1 Or b = 5",
        "nOt a = 1",
        "!a",
    ]
    made += [
        "a = TRue",
        "t = tRUE",
        "between between 1 and 2",
        "in IN ('1')",
        "a in('1','5')",
        "a=1and b=2",
        "a=1and(b=2)",
    ]
    made += [
        "a = 1e",
        "a = 1e+",
        "a = 1.e3",
        "a = 1.5.5",
        "a = .",
        "a = 1.L",
        "a = 00",
        "a = 01",
        "a = 0.5L",
        "a = 1ll",
    ]
    return made


def _deep() -> list[str]:
    made = ["(" * n + "a = 1" + ")" * n for n in (10, 100, 200)]
    made += [
        " OR ".join(f"a = {n}" for n in range(500)),
        " AND ".join(f"a <> {n}" for n in range(2, 400)),
    ]
    made += [
        "a IN (" + ",".join(f"'{n}'" for n in range(1000)) + ")",
        "NOT " * 50 + "a = 1",
        "a = " + "- " * 50 + "1",
    ]
    made += [
        "a = " + "9" * 400,
        "a = 1" + "0" * 18,
        "a = 0." + "0" * 400 + "1",
        "a = 1" + "0" * 400 + ".0",
    ]
    made += [
        "s = '" + "x" * 5000 + "'",
        "a" * 1000 + " = 1",
        "a = 1 " + "/* x */ " * 200 + "AND s = 'x'",
    ]
    return made


EXPRESSIONS: list[str] = list(
    dict.fromkeys(
        [
            *_comparisons(),
            *_logic(),
            *_ranges(),
            *_lists_and_searches(),
            *_nulls(),
            *_texts(),
            *_deep(),
        ]
    )
)
"""Each once, in a fixed order."""
