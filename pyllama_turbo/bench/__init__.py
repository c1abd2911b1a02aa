"""Is it faster: llama-bench's rows over KV types, depths and batches, in turns, with ratio and spread."""

from __future__ import annotations

from .cases import Case, Matrix, Test, parse_numbers, parse_pairs, parse_tests
from .compare import Ratio, paired_ratio
from .rows import Row, csv_lines, json_line, markdown
from .runner import BenchOptions, common_row, run_group, run_matrix

__all__ = [
    "BenchOptions",
    "Case",
    "Matrix",
    "Ratio",
    "Row",
    "Test",
    "common_row",
    "csv_lines",
    "json_line",
    "markdown",
    "paired_ratio",
    "parse_numbers",
    "parse_pairs",
    "parse_tests",
    "run_group",
    "run_matrix",
]
