"""The page of a terminal has the text and the colours of what a command printed."""

import re

from tests.screens.terminal import page_of


def test_sequences_of_colours_become_styles_of_the_text_between() -> None:
    """The text itself is escaped, and a reset ends all colours."""
    text = "a<b \x1b[38;2;1;2;3;48;5;16mpixel\x1b[0m plain \x1b[1;31mred\x1b[39m bold\x1b[m"
    page = page_of(text, 40)
    spans = re.findall(r'<span style="([^"]*)">([^<]*)</span>', page)
    assert spans == [
        ("color:rgb(1,2,3);background:rgb(0, 0, 0)", "pixel"),
        ("font-weight:bold;color:#cd3131", "red"),
        ("font-weight:bold", " bold"),
    ]
    assert ">a&lt;b <" in page
    assert "> plain <" in page
    assert "width:40ch" in page
    assert "\x1b" not in page
