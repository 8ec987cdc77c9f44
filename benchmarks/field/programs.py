"""All programs of the field. Importing this module registers them."""

from benchmarks.field import (
    generative,
    graphs,
    language,
    physics,
    recurrent,
    reinforcement,
    speech,
    vision,
)
from benchmarks.field.program import PROGRAMS

__all__ = [
    "PROGRAMS",
    "generative",
    "graphs",
    "language",
    "physics",
    "recurrent",
    "reinforcement",
    "speech",
    "vision",
]
