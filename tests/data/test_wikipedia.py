"""Wikipedia's markup is removed."""

import pytest

from staircase_attention.data.wikipedia import plain_text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a [[b|c]] d [[e]]s", "a c d es"),
        ("x [[Image:a.jpg|thumb|A [[bee]] flies]] y", "x  y"),
        ("a<ref name='r'>no</ref> b<ref name=r/> c<!-- no -->", "a b c"),
        ("a {{b {{c}} d}} e", "a  e"),
        ("a\n{| class=x\n|-\n{| y |}\n| z\n|}\nb", "a\n\nb"),
        ("[http://x.org label] [http://x.org]", "label"),
        ("== Head ==\n* one\n** two\n# three\n:four\n----", "Head\none\ntwo\nthree\nfour"),
        ("a &lt;b&gt;bold&lt;/b&gt; &amp;nbsp;c 1 &lt; 2", "a bold \xa0c 1 < 2"),
        ("unclosed {{a [[b ''c", "unclosed {{a [[b c"),
    ],
)
def test_markup_is_removed(markup, text):
    assert plain_text(markup) == text
