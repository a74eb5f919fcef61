"""The content of a terminal as a page: text with the colours that a command has chosen."""

import re
from html import escape
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b\[([0-9;]*)m")
_STYLE: Final = """
body { margin: 0; background: #16181d; color: #d8dbe2; }
pre { margin: 0; padding: 14px 18px; display: inline-block; font: 14px/16px "DejaVu Sans Mono", monospace; }
"""
_CUBE: Final = (0, 95, 135, 175, 215, 255)
_FIRST_OF_CUBE: Final = 16
_FIRST_GREY: Final = 232
_NAMED: Final = (
    "#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5",
    "#666666", "#f14c4c", "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff",
)  # fmt: skip


def page_of(text: str, columns: int) -> str:
    """Return a page that shows a terminal with a number of columns.

    Args:
        text: the lines, with sequences of colours.
        columns: the width.
    """
    parts: list[str] = []
    style: dict[str, str] = {}
    end = 0
    for found in _SEQUENCE.finditer(text):
        parts.append(_span(text[end : found.start()], style))
        _apply(found[1], style)
        end = found.end()
    parts.append(_span(text[end:], style))
    return (
        f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style><pre style="width:{columns}ch">'
        f"{''.join(parts)}</pre>"
    )


def _span(text: str, style: dict[str, str]) -> str:
    if not (text and style):
        return escape(text)
    return f'<span style="{";".join(f"{name}:{value}" for name, value in style.items())}">{escape(text)}</span>'


def _apply(numbers: str, style: dict[str, str]) -> None:
    """Change the style as a sequence of numbers says."""
    rest = [int(number or 0) for number in numbers.split(";")]
    while rest:
        match rest:
            case [38 | 48 as kind, 2, red, green, blue, *rest]:
                style[_property(kind)] = f"rgb({red},{green},{blue})"
            case [38 | 48 as kind, 5, number, *rest]:
                style[_property(kind)] = _colour(number)
            case _:
                _apply_one(rest.pop(0), style)


def _apply_one(number: int, style: dict[str, str]) -> None:
    match number:
        case 0:
            style.clear()
        case 1:
            style["font-weight"] = "bold"
        case 2:
            style["opacity"] = "0.6"
        case 39 | 49:
            style.pop(_property(number - 1), None)
        case _:
            _apply_named(number, style)


def _property(kind: int) -> str:
    return "color" if kind == 38 else "background"


def _apply_named(number: int, style: dict[str, str]) -> None:
    for first, name, named in ((30, "color", 0), (40, "background", 0), (90, "color", 8), (100, "background", 8)):
        if first <= number < first + 8:
            style[name] = _NAMED[number - first + named]


def _colour(number: int) -> str:
    """Return a colour of a palette of 256."""
    if number < _FIRST_OF_CUBE:
        return _NAMED[number]
    if number >= _FIRST_GREY:
        return f"rgb({', '.join([str(8 + 10 * (number - _FIRST_GREY))] * 3)})"
    cube = number - _FIRST_OF_CUBE
    return f"rgb({_CUBE[cube // 36]}, {_CUBE[cube // 6 % 6]}, {_CUBE[cube % 6]})"
