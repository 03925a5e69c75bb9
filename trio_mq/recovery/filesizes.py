"""Which size the files of a row were made with, told by their lengths and names. Pure.

In: names and lengths of the files of the commit log, or of all consume queues of one kind, from
:mod:`trio_mq.recovery.detect`. Out: the size, in words how it was found, and which files contradict it. In a whole
store all files have the same length, which is the distance of their names, too; copies may be cut short, and files
may be missing. Source of the rules: Apache MappedFileQueue (names, lengths), CommitLog (what ends a file).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import Final

import attrs

from trio_mq.protocol.layout import BLANK_MAGIC

#: Lengths that are tried; more than a few different ones come only from damage.
_MOST_CANDIDATES: Final = 32
#: Files that are named one by one when their length is wrong; the rest is counted.
MOST_NAMED: Final = 10
#: How many bytes of its end show whether a log file is whole: zeros, or the blank that fills up the file.
END_BYTES: Final = 8


@attrs.frozen
class FoundFile:
    """A file of a row: offset of its first byte, by its name, and length. `cut`: its end is missing, as it seems."""

    path: str
    start: int
    length: int
    cut: bool = False


@attrs.frozen
class Size:
    """A number that files were made with, and how it was found; `found` is False where no file tells."""

    value: int
    how: str
    found: bool = True


@attrs.frozen
class Rule:
    """What sizes of one kind of files can be: multiples of `unit`, not below `least`; `default` is Apache's."""

    what: str
    unit: int
    least: int
    default: int


def ends_as_whole(tail: bytes, length: int) -> bool:
    """Whether a log file of this length that ends with `tail` (8 bytes) may be as long as it was made.

    Behind the last record of a segment there are zeros, or the blank's length and magic with zeros behind. Lengths
    that are powers of two are believed anyway: nobody's copy stops there.
    """
    return not any(tail) or BLANK_MAGIC in tail or length & (length - 1) == 0


def find_size(rows: Sequence[Sequence[FoundFile]], rule: Rule) -> Size:
    """The size of the files in some rows, each sorted by name."""
    files = [file for row in rows for file in row]
    if not files:
        return Size(rule.default, f"no {rule.what} is there: Apache's default", found=False)
    lengths = Counter(file.length for file in files if not file.cut)
    gaps = Counter(b.start - a.start for row in rows for a, b in pairwise(row))
    starts = Counter(file.start for file in files)
    common = (lengths + gaps).most_common(_MOST_CANDIDATES)
    candidates = {size for size, _ in common if size >= rule.least and not size % rule.unit}
    # Of two that have as much for them, the one that some file has (a gap may be of several files), then the larger.
    ranked = max(
        ((_score(size, lengths, gaps, starts), size in lengths, size) for size in candidates),
        default=(0, False, 0),
    )
    if ranked[0] > 0:
        size = ranked[2]
        return Size(size, _how(size, rule.what, lengths[size], gaps[size], len(files)))
    return _guess(files, rule)


def _score(size: int, lengths: Counter[int], gaps: Counter[int], starts: Counter[int]) -> int:
    """How much speaks for a size. A file can be shorter than it was made, but not longer, nor begin elsewhere."""
    against = sum(count for length, count in lengths.items() if length > size)
    against += sum(count for start, count in starts.items() if start % size)
    return lengths[size] + gaps[size] - 2 * against


def _how(size: int, what: str, lengths: int, gaps: int, total: int) -> str:
    if not lengths:
        return f"the names are so far apart; no {what} has this length"
    text = f"the length of {lengths} of {total}" if total > 1 else f"the length of the only {what}"
    return f"{text}, and the names are as far apart" if gaps else text


def _guess(files: Sequence[FoundFile], rule: Rule) -> Size:
    """A size that the files may have been cut from."""
    longest = max(file.length for file in files)
    step = gcd(*(file.start for file in files))
    if longest <= rule.default and step % rule.default == 0:
        how = f"Apache's default: no {rule.what} seems to have the length that it was made with"
        return Size(rule.default, how, found=False)
    size = -(-max(longest, rule.least) // rule.unit) * rule.unit
    if step >= size and step % rule.unit == 0:
        return Size(step, f"the names are multiples of it; no {rule.what} seems whole", found=False)
    return Size(size, f"the length of the longest {rule.what}; nothing else tells", found=False)


def contradictions(rows: Sequence[Sequence[FoundFile]], size: int, what: str) -> Iterator[str]:
    """Notes about files that do not fit a size. An empty last file is what a crash leaves, and no contradiction."""
    wrong = [
        (file, _fault(file, size))
        for row in rows
        for file in row
        if _fault(file, size) and (file.length or file is not row[-1])
    ]
    for file, fault in wrong[:MOST_NAMED]:
        yield f"{file.path} {fault}"
    if len(wrong) > MOST_NAMED:
        yield f"{len(wrong) - MOST_NAMED} more {what}s do not fit {size} bytes either"


def _fault(file: FoundFile, size: int) -> str:
    if file.start % size:
        return f"begins at {file.start}, expected a multiple of {size}"
    if file.length != size:
        return f"has {file.length} bytes, expected {size}"
    return ""
