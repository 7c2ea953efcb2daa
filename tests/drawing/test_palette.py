"""Colours can be told apart by lightness alone, and numbers on them can be read."""

import pytest

from staircase_attention.drawing.palette import contrast, ink_on, luminance, pass_colour


@pytest.mark.parametrize("num_passes", [1, 2, 3, 8, 40])
def test_every_pass_is_darker_than_the_one_before(num_passes: int):
    lightness = [luminance(pass_colour(n, num_passes)) for n in range(1, num_passes + 1)]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(lightness)) == num_passes


@pytest.mark.parametrize("num_passes", [1, 2, 3, 8, 40])
def test_numbers_on_any_colour_meet_the_contrast_that_small_text_needs(num_passes: int):
    for pass_number in range(1, num_passes + 1):
        colour = pass_colour(pass_number, num_passes)
        assert contrast(ink_on(colour), colour) >= 4.5
