"""A text made safe for a terminal: names of functions, files and keys may hold characters that a terminal obeys.

A name can come from anywhere: a file of a downloaded dataset, a key of another program's checkpoint, a function that
was made from a string. An escape sequence in it could hide or overwrite lines, set the title of the window, or fill the
clipboard; a newline could imitate a line of ours; and characters that turn the direction of writing show another name.
So each text for people that has such a name, unless as `repr`, passes `printable`. Names themselves stay as they are:
seeds and fingerprints depend on them, and loggers find figures by them.
"""


def printable(text: str) -> str:
    r"""Return a text as one line, whose other control characters are replaced.

    Example:
        >>> printable("a\nname\x1b[31m")
        'a name�[31m'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "�" for each in text)
