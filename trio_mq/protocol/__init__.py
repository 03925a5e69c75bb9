"""Bytes to values and back: frames, commands, headers, bodies, messages, records.

Nothing here does IO, knows a clock or imports Trio; of the rest of the package only the errors are
known.
"""
