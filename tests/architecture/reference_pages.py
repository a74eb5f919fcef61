"""The reference pages, written from the docstrings: a page for each public module, and one for the dataset's verbs.

Run as a module it writes them into the folder it is given, or with `--check` says which of them would differ;
`scripts/reference` calls it.
"""

import ast
import dataclasses
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import penstock
from tests.architecture.public_names import public_members, public_modules, public_objects

WIDTH = 100  # of a signature on one line
OWN_PAGES = {"penstock.Dataset": "dataset"}  # what is too long for its module's page
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples):")
NAMED = re.compile(r"(?P<name>\*{0,2}\w+(?:, \w+)*): (?P<text>.*)", re.DOTALL)


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    listed: dict[str, list[tuple[str, object]]] = {}
    for name, value in public_objects():
        page = OWN_PAGES.get(name, name.rpartition(".")[0])
        listed.setdefault(page, []).append((name, value))
    made = {
        f"{page}.md": _page(page, listed[page], modules.get(page))
        for modules in [{module.__name__: module for module in public_modules()}]
        for page in sorted(listed)
    }
    return {"README.md": _index(listed)} | made


def _index(listed: dict[str, list[tuple[str, object]]]) -> str:
    lines = ["# Reference", "", "Written from the docstrings by `scripts/reference`, whose examples are tests.", ""]
    for page, entries in sorted(listed.items()):
        lines.append(f"- [{page}]({page}.md): {', '.join(f'`{_last(name)}`' for name, _ in entries)}")
        if page in OWN_PAGES.values():
            lines[-1] = f"- [{page}]({page}.md): the verbs of `{entries[0][0]}`: " + ", ".join(
                f"`{_last(name)}`" for name, _ in public_members(*entries[0])
            )
    return "\n".join(lines) + "\n"


def _page(page: str, entries: list[tuple[str, object]], module: ModuleType | None) -> str:
    parts = [f"# {page}", *([] if module is None else [markdown(inspect.getdoc(module) or "")])]
    for name, value in entries:
        parts += _entry(name, value, "##")
        for member, inner in public_members(name, value):
            if inspect.getdoc(_function(inner)) and not _is_field(inner):
                parts += _entry(member, inner, "###")
    return "\n\n".join(parts) + "\n"


def _entry(name: str, value: object, heading: str) -> Iterator[str]:
    yield f"{heading} {name}"
    signature = _signature(name, value)
    if signature:
        yield f"```text\n{signature}\n```"
    text = inspect.getdoc(_function(value)) if callable(_function(value)) or isinstance(value, property) else None
    if text:
        yield markdown(text)


def _signature(name: str, value: object) -> str:
    """Return how a function or class is called, as its source says; nothing for a value or a property."""
    value = _function(value)
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return ""
        tree = _source(value)
        assert isinstance(tree, ast.ClassDef)
        makers = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        if makers and value is not penstock.Dataset:
            return _call(_last(name), _arguments(makers[0].args, skip=1), "")
        fields = [_field(part) for part in tree.body if isinstance(part, ast.AnnAssign)]
        return _call(_last(name), fields, "") if dataclasses.is_dataclass(value) else ""
    if inspect.isfunction(value):
        tree = _source(value)
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
        skip = 1 if "." in name.removeprefix("penstock.") and _is_bound(tree) else 0
        returned = "" if tree.returns is None else f" -> {_annotation(tree.returns)}"
        return _call(_last(name), _arguments(tree.args, skip), returned)
    return ""


def _source(value: object) -> ast.stmt:
    assert inspect.isclass(value) or inspect.isfunction(value)
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _is_bound(tree: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    places = [*tree.args.posonlyargs, *tree.args.args]
    return bool(places) and places[0].arg in ("self", "cls")


def _field(part: ast.AnnAssign) -> str:
    default = "" if part.value is None else f" = {ast.unparse(part.value)}"
    return f"{ast.unparse(part.target)}: {_annotation(part.annotation)}{default}"


def _arguments(arguments: ast.arguments, skip: int) -> list[str]:
    places = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(places) - len(arguments.defaults)) + list(arguments.defaults)
    texts = [_argument(argument, default) for argument, default in zip(places, defaults, strict=True)][skip:]
    if arguments.posonlyargs[skip:]:
        texts.insert(len(arguments.posonlyargs) - skip, "/")
    if arguments.vararg is not None:
        texts.append("*" + _argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        texts.append("*")
    texts += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return texts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {_annotation(argument.annotation)}"
    return argument.arg + annotation + ("" if default is None else f" = {ast.unparse(default)}")


def _annotation(annotation: ast.expr) -> str:
    """Return an annotation without the quotes that put off its evaluation."""
    whole = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    return str(annotation.value) if whole and isinstance(annotation, ast.Constant) else ast.unparse(annotation)


def _call(name: str, arguments: list[str], returned: str) -> str:
    arguments = [argument.replace("'", '"') for argument in arguments]  # as it is written in the source
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returned}"])


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples and drawings as blocks."""
    parts: list[str] = []
    section = ""
    for line, inner in _blocks(docstring):
        section = line if SECTION.fullmatch(line) else ""
        if not section:
            parts.append(_paragraphs(line))
        elif section.startswith("Example"):
            parts.append(f"```pycon\n{inner}\n```")
        else:
            parts.append(f"**{section}**\n\n{_list(inner)}")
    return "\n\n".join(part for part in parts if part)


def _blocks(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (text, "") for what is outside of sections, and (heading, the text below it)."""
    outside: list[str] = []
    lines = docstring.splitlines()
    at = 0
    while at < len(lines):
        if not SECTION.fullmatch(lines[at]):
            outside.append(lines[at])
            at += 1
            continue
        yield "\n".join(outside).strip("\n"), ""
        outside = []
        end = at + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
            end += 1
        yield lines[at], textwrap.dedent("\n".join(lines[at + 1 : end])).strip("\n")
        at = end
    yield "\n".join(outside).strip("\n"), ""


def _list(inner: str) -> str:
    """Return the entries of a section: lines that stand at its left edge, with what is indented below them."""
    entries = re.split(r"\n(?=\S)", inner)
    if not NAMED.fullmatch(entries[0]):
        return inner
    return "\n".join(_named(entry) for entry in entries)


def _named(entry: str) -> str:
    named = NAMED.fullmatch(entry)
    if named is None:
        return f"- {_joined(entry)}"
    return f"- `{named['name']}`: {_joined(named['text'])}"


def _joined(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)


def _paragraphs(text: str) -> str:
    """Return running text as it is; what is indented, and a program at its end, as blocks."""
    text, opening, program = text.partition("\n\nimport ")
    if opening:
        return f"{_paragraphs(text)}\n\n```text\nimport {program}\n```"
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", text):
        drawn = part.startswith("    ")
        parts.append(f"```text\n{textwrap.dedent(part)}\n```" if drawn else part)
    return "\n\n".join(parts)


def _function(value: object) -> object:
    """Return what a class holds as it was written: the function below a property or a class method."""
    below: object = getattr(value, "__wrapped__", value)
    return below


def _is_field(value: object) -> bool:
    return inspect.isdatadescriptor(value) and not isinstance(value, property)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def main() -> int:
    """Write the pages, or say which differ; return the exit status."""
    *options, folder = sys.argv[1:]
    target = Path(folder)
    made = pages()
    old = {path.name: path.read_text(encoding="utf-8") for path in target.glob("*.md")}
    if "--check" in options:
        for name in sorted({*made, *old}):
            before, after = (texts.get(name, "").splitlines() for texts in (old, made))
            differing = difflib.unified_diff(before, after, f"{folder}/{name}", "from the docstrings", lineterm="")
            sys.stdout.writelines(f"{line}\n" for line in differing)
        return int(old != made)
    target.mkdir(parents=True, exist_ok=True)
    for name in {*old} - {*made}:
        (target / name).unlink()
    for name, text in made.items():
        (target / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
