from staircase_attention.drawing.figure import save_picture as save_picture
from staircase_attention.drawing.picture import Box as Box
from staircase_attention.drawing.picture import Picture as Picture
from staircase_attention.drawing.picture import Row as Row
from staircase_attention.drawing.picture import picture as picture
from staircase_attention.drawing.terminal import TerminalPicture as TerminalPicture
