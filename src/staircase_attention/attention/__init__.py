"""How queries meet keys: a reference that follows the equation, and the same by fast products."""

from staircase_attention.attention.products import attend
from staircase_attention.attention.view import View

__all__ = ["View", "attend"]
