from staircase_attention.files import *  # noqa
