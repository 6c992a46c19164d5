r"""Words and forms that a native engineer would not write, each with what to write instead.

The patterns below are compared with the names that Python code defines, with its docstrings, comments and messages,
and with the prose of pages, pictures, workflows and scripts. Code in pages and in backticks is left out. In a pattern a
space matches any gap between two words: a line break, the `#` of the next comment line, the quotes between two literals.
A pattern matches whole words only.

Run it from the root: `python infra/checks/wording.py`. With files or folders as arguments it checks these, pending or not.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

PENDING: tuple[str, ...] = ()
"""Beginnings of paths where the old wording has yet to go. This list only gets shorter."""

ALLOWED = (
    ("infra/s3/README.md", "Go on", "the language"),
    ("src/holdfast/spark/by_key.py", "keyed", "the public function"),
    ("src/holdfast/spark/connected_rows.py", "how", "the argument of Spark's join"),
    ("*", "tell", "the method of `io.IOBase`"),
    ("tests/contracts/fsspec_stores.py", "modified", "a method of fsspec"),
    ("tests/servers/postgres.py", "nobody", "the user"),
    ("infra/checks/wording.py", ".*", "it lists the words"),
    ("tests/test_wording.py", ".*", "it has an example of each pattern"),
)
"""Where a hit is right: a pattern of paths, an expression that matches the whole hit, and the reason."""

MAX_TEST_NAME = 70

SUFFIXES = (".py", ".md", ".svg", ".yml", ".yaml", ".toml", ".cff")
PROGRAMS = ("Makefile", ".ci/*", "infra/*")
"""Files without a suffix that contain prose."""

PROSE = {
    # Time and order as space
    "behind(?! (?:a|the) (?:proxy|firewall|scenes))": "after, following",
    "beside": "next to, compared with",
    "in front of(?! (?:a|the|its|real) (?:store|server|proxy|name))": "before",
    "(?:of|by|for|behind|beside) which": "two sentences, or `whose`",
    # Clauses and agents without a noun
    r"(?-i:What|Whatever|All that|Who|Whoever)(?![^.?]*\?)": "a noun: files, rows, settings …",
    "(?-i:Those|Such)(?: that| who| as)": "the noun again",
    "(?:of|than|by|with|from|for) what (?:is|was|it|the|a|has|have)": "a noun: files, rows, settings …",
    "all that(?= (?:is|are|was|has|have|the|it|there))": "everything that",
    "nobody|somebody|everybody|anybody": "no one, the passive, or the agent's name",
    "whoever|whomever": "if you …",
    # Negated nouns and bounds
    r"(?<!ere\x20)(?:is|are|was|were) no (?!longer|more|less|matter|other)\w+": "is not a (valid) …",
    "(?:is|are|was|were) none": "does not exist, is not one of",
    "none of (?:its|the|this|ours)": "not one of the",
    r"an? \w+ at least": "must be >= 1, got …",
    # Verbs
    "say|says|said|saying|speaks? (?:of|against)|spoken of": "specifies, reports, states, returns",
    "told|tells|tell": "notified, given, reports; is distinguished from",
    "(?:go|goes|going|gone|went) on": "resumes, continues",
    "(?:go|goes|going|gone|went) by": "uses, follows",
    "(?:stand|stands|stood|standing)(?!-)": "is (stored), means",
    "lies|lie|lying": "is stored, is in",
    "(?:come|comes|came|coming) to(?! an? (?:stop|halt))": "reaches, results in, amounts to",
    r"(?:come|comes|came|take|takes|took)(?: \w+){0,2} along": "includes, keeps",
    "bears?|bore|borne": "has, carries",
    "(?:is|are|was) over": "has ended",
    "lets? go|letting go": "releases, deletes",
    "given up|gave up on|gives? it up": "aborted, failed",
    "deals?(?! with)|dealt|dealing(?! with)": "partitions, routes, distributes",
    "settled?|settles|settling": "flushes, resolves",
    "(?:take|takes|took|by|in) turns|turn by turn": "alternates; per key",
    "(?:in|of|by) the making": "in progress",
    # Words
    "anew": "again, from scratch",
    "meanwhile": "in the meantime, concurrently",
    "any more": "any longer, or `no longer`",
    "some day|by and by|as ever|by now": "eventually, gradually, still, already",
    "all the same": "anyway, still",
    "but for": "except",
    "for ever": "forever",
    "alone": "only",
    "time after time": "repeatedly",
    r"so (?:many|much)(?= [a-z]+(?: |,|\.|;))": "this many, up to N",
    "misfits?": "incompatible",
    "flaws?": "corruption, error",
    "needles?": "lookup keys",
    "wake-ups?": "idle ticks",
    "of (?:ours|theirs|yours|mine)": "our …, their …",
    "of (?:its|their|one's|your|my|our) own": "its own …, separate",
    r"of [A-Z]\w+'s(?: own)?(?=[.,;:)]| (?:that|and|in|is|are|to)\b)"
    "|(?:settings?|savepoints?|errors?|logs?|options) of "
    r"(?:Spark|PySpark|Flink|Holdfast|Hadoop|RocksDB)(?! [\d.]|'s| and| or)": "a compound: Spark settings",
    "(?:whatever|what|which|any|every|each|some) kinds?": "type, variant",
    r"reckon\w*|mend|mends|mended|rubbish|glimpse|doomed": "compute, fix, garbage, prefix",
    "(?:a|the|this|that|each|every|of|by) roll back|roll backs": "rollback",
    "a text(?= (?:is|that|of|or|in|and)|[.,;)])": "a string",
    "spelt|misspelt": "spelled, misspelled",
    r"(?<=##\x20)(?-i:Where|How|Why|When|Is)(?![^\n]*\?)": "a heading that is a noun phrase",
}
"""For docstrings, comments, messages, pages, and for the words of names."""

NAMES = PROSE | {
    "most|least|enough": "max, min",
    "^are(?= )": "has_, is_, all_",
    "turns?": "key, call, round",
    "begun|doing|^(?:nothing|anything|something)$": "a noun or a verb",
    "whether|what|which|where|whose|who|that|how": "a noun or a verb",
}
"""For the words of every name that is defined, in lower case with spaces between them."""

CLASSES = {"of|by|to|from|with|without|than|its|are|is": "a noun without prepositions"}
VARIABLES = {"^(?:one|found|taken|tried|it|them)$": "the thing's name"}
FUNCTIONS = {
    r"^(?!need|seed|feed|speed|embed)\w+ed$|^(?:taken|given|written|shown|known|left|kept|made|lost|sent|held|built)$"
    "|^(?:meant|seen|done|gone|drawn|chosen|broken|hidden|found)$": "a verb for an action, a noun for a value",
}
DOCSTRING_START = re.compile(
    r"\s*(what|whether|where|who|how|when|why|so|as|that|those|of|its|whose|them|theirs|which|if)\b(?!-)",
    re.IGNORECASE,
)

GAP = r'(?:[\s#>]|"\s+[rf]*"|\'\s+[rf]*\')+'
STRING = r'"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
TEXT = re.compile(rf"(?:{STRING}|#[^\n]*)(?:\s*[rf]*(?:{STRING}|#[^\n]*))*", re.DOTALL)
"""A run of literals and comments with nothing between them."""
CODE_IN_PAGE = re.compile(r"(?sm)```.*?^ *```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+")
CODE_IN_TEXT = re.compile(r"``?[^`\n]*``?|https?://\S+")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Hit(NamedTuple):
    """A line, the words there, and the words to write instead."""

    line: int
    words: str
    instead: str


@cache
def expression(*patterns: str) -> re.Pattern[str]:
    """Return one expression for all patterns; the number of the matching one is the name of its group."""
    groups = (f"(?P<p{n}>{pattern.replace(' ', GAP)})" for n, pattern in enumerate(patterns))
    return re.compile(rf"(?<![\w`-])(?:{'|'.join(groups)})(?![\w`])", re.IGNORECASE)


def matches(
    rows: dict[str, str], text: str, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, str, str]]:
    """Find the patterns in a part of a text: where each is, the matching words, and the words to write instead."""
    for match in expression(*rows).finditer(text, start, len(text) if end is None else end):
        row = int((match.lastgroup or "")[1:])
        yield (
            match.start(),
            " ".join(re.sub(r"[\"'#\s>]+", " ", match[0]).split()),
            list(rows.values())[row],
        )


def text_hits(text: str, start: int = 0, end: int | None = None) -> Iterator[Hit]:
    """Find patterns in a part of a text."""
    for position, words, instead in matches(PROSE, text, start, end):
        yield Hit(text.count("\n", 0, position) + 1, words, instead)


def blank_lines(match: re.Match[str]) -> str:
    """Replace code by as many lines without words."""
    return "¦" + "\n" * match[0].count("\n")


@cache
def replacements(name: str, kind: str) -> frozenset[str]:
    """Return the words to write instead of those of a name."""
    words = " ".join(WORD.findall(name)).lower()
    own_rows = {"class": CLASSES, "function": FUNCTIONS, "variable": VARIABLES}.get(kind, {})
    return frozenset(
        instead for rows in (NAMES, own_rows) if rows for _, _, instead in matches(rows, words)
    )


def defined_name(node: ast.AST) -> tuple[str, str]:
    """Return the name that a node defines, and the kind of thing that it names; empty if it defines none."""
    match node:
        case ast.ClassDef(name=name):
            return name, "class"
        case ast.FunctionDef(name=name):
            is_property = any("property" in ast.unparse(d) for d in node.decorator_list)
            return name, "property" if is_property else "function"
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return name, "variable"
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name, "attribute"
    return "", ""


def code_hits(text: str) -> Iterator[Hit]:
    """Find patterns in the names, docstrings, comments and messages of a module."""
    prose = CODE_IN_TEXT.sub(blank_lines, text)
    for literals in TEXT.finditer(prose):
        yield from text_hits(prose, *literals.span())
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:  # as `ast.walk` does, in half the time
        node = nodes.pop()
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.arg | ast.Name | ast.Attribute):
            name, kind = defined_name(node)
            yield from (Hit(node.lineno, name, instead) for instead in replacements(name, kind))
            if name.startswith("test_") and len(name) > MAX_TEST_NAME:
                yield Hit(node.lineno, name, f"at most {MAX_TEST_NAME} characters")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            start = DOCSTRING_START.match(str(node.value.value))
            if start is not None:
                yield Hit(node.lineno, f'"""{start[1]} …', "an imperative, or a noun phrase")


def file_lines(path: str) -> list[str]:
    """Return the hits in a file that are not allowed there, each as a line."""
    text = Path(path).read_text("utf-8")
    hits = (
        code_hits(text) if path.endswith(".py") else text_hits(CODE_IN_PAGE.sub(blank_lines, text))
    )
    allowed = [
        re.compile(words, re.IGNORECASE) for place, words, _ in ALLOWED if fnmatch(path, place)
    ]
    return [
        f"{path}:{hit.line}: {hit.words!r}: write {hit.instead}"
        for hit in sorted(set(hits))
        if not any(words.fullmatch(hit.words) for words in allowed)
    ]


def is_prose(path: str) -> bool:
    """Return whether a file is checked."""
    if "." in path.rpartition("/")[2]:
        return path.endswith(SUFFIXES)
    return any(fnmatch(path, program) for program in PROGRAMS)


def main(places: list[str]) -> int:
    """Print every hit with its place and what to write instead."""
    listing = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *places,
    ]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    paths = [
        name
        for name in sorted(set(names))
        if is_prose(name) and (places or not name.startswith(PENDING))
        if Path(name).is_file() and not Path(name).is_symlink()
    ]
    with ProcessPoolExecutor() as processes:
        lines = [line for lines in processes.map(file_lines, paths, chunksize=25) for line in lines]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
