"""How queries meet keys: a slow reference, fast back-ends of the same signature, one choice."""

from staircase_attention.attention.choice import attend, attention_flops
from staircase_attention.attention.view import View

__all__ = ["View", "attend", "attention_flops"]
