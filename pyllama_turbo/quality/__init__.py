"""Is the answer still as good: perplexity, KL divergence against f16, greedy identity, recall of a needle, gates."""

from __future__ import annotations

from .basefile import BaseFile, create, open_base
from .divergence import Divergence, TokenScores, summarise
from .gates import LEVELS, Gate, Verdict, judge, parse_gate
from .measure import Perplexity, perplexity, score, write_base
from .passes import ContextSource, open_source
from .plan import ScorePlan, chunk_plan, range_plan

__all__ = [
    "LEVELS",
    "BaseFile",
    "ContextSource",
    "Divergence",
    "Gate",
    "Perplexity",
    "ScorePlan",
    "TokenScores",
    "Verdict",
    "chunk_plan",
    "create",
    "judge",
    "open_base",
    "open_source",
    "parse_gate",
    "perplexity",
    "range_plan",
    "score",
    "summarise",
    "write_base",
]
