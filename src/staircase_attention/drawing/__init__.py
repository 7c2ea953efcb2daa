"""The paper's Figure 1 for any timetable: as plain data, in the terminal, as SVG or PNG."""

from staircase_attention.drawing.picture import picture as picture
from staircase_attention.lazy import lazy_names

# matplotlib takes a second to import. `picture` is here at once: a module has its name, too.
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
