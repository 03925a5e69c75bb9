"""Tests of SQL92 filters; ``expressions.py`` and ``apache-5.4.0.jsonl`` are what Apache's own evaluator was asked."""
