"""Cleaning changes what it documents, and nothing else."""

import pytest

from staircase_attention.checks import InputError
from staircase_attention.data.reddit import (
    RedditOptions,
    Status,
    clean_text,
    is_allowed_by_roller,
)


def status(body, author="someone", **rules):
    return RedditOptions(**rules).clean(author, body)[0]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("1 &lt; 2 &amp;&amp; 3 &gt; 2", "1 < 2 && 3 > 2"),
        # The page showed the author's own entities decoded.
        ("a&amp;nbsp;b&amp;amp;c", "a\xa0b&c"),
        ("http://a.org/?x=1&amp;copy=2&reg=3", "http://a.org/?x=1&copy=2&reg=3"),
        ("&nosuchname; &#x26; &#38;", "&nosuchname; & &"),
        ("&#xD800;&#0;", "\ufffd\ufffd"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("one  \n\n\n \n\n  two", "one\n\n  two"),
        ("\n\n one \t\n", "one"),
        ("a\x00b\x07c\u200b", "abc"),
        ("â\x80\x99 \x85 naïve \U0001f600", "â\x80\x99 \x85 naïve \U0001f600"),
    ],
)
def test_a_body_becomes_what_its_readers_saw(body, text):
    assert clean_text(body) == text


def test_no_cleaned_text_has_a_blank_line_twice():
    for body in ("a\n \n \nb", "a\n\u200b\n\u200b\nb", "a\n\x00\n\n\nb", "a\n&#10;&#10;\nb"):
        assert "\n\n\n" not in clean_text(body)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("[deleted]", Status.DELETED),
        (" [deleted]\r\n", Status.DELETED),
        ("[removed]", Status.REMOVED),
        ("[ Removed by Reddit ]", Status.REMOVED),
        ("", Status.EMPTY),
        ("&amp;#x200B;\n", Status.EMPTY),
        ("[deleted] is what it said", Status.LIVING),
        ("[citation needed]", Status.LIVING),
    ],
)
def test_removed_bodies_are_distinguished_from_texts_that_mention_them(body, found):
    assert status(body) is found


@pytest.mark.parametrize(
    ("author", "is_bot"),
    [
        ("AutoModerator", True),
        ("automoderator", True),
        ("RemindMeBot", True),
        ("gifv-bot", True),
        ("image_linker_bot", True),
        ("HelperBot_", True),
        ("HelperBot_2", True),
        ("abbot", False),
        ("robotics_fan", False),
        ("Talbot", False),
        ("bottle", False),
        ("[deleted]", False),
    ],
)
def test_bots_are_recognised_by_their_names(author, is_bot):
    assert (status("Beep.", author) is Status.BOTS) == is_bot


def test_the_rules_can_be_changed_and_bad_ones_are_refused():
    assert status("Beep.", "gifv-bot", bots=None) is Status.LIVING
    assert status("Beep.", "talbot", bots=".*bot") is Status.BOTS
    with pytest.raises(ValueError, match="filters must be one of none, roller, got 'all'"):
        RedditOptions(filters="all")


def test_the_filters_of_roller_reject_what_they_document():
    assert is_allowed_by_roller("A usual comment.")
    for text in ("Hm.", "x" * 2_049, "see www.example.org", "so HTTP://a.b", "¿Qué tal?"):
        assert not is_allowed_by_roller(text), text
        assert status(text, filters="roller") is Status.FILTERED
        assert status(text) is Status.LIVING


def test_a_pattern_of_bots_must_be_one():
    with pytest.raises(InputError, match=r"bots must be a regular expression, got '\('"):
        RedditOptions(bots="(")
