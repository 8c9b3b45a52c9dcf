"""No regular expression of the product takes more than linear time: text, logs, names and addresses come from anywhere.

Each is fed what it is worst at: after what it begins with, its repeated parts again and again, and an end that fits
none. What is quadratic takes minutes for so much, so the alarm is for a hang alone.
"""

import ast
import importlib
import re
import signal
from collections import defaultdict
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from re import _compiler as compiler
from re import _constants as codes
from re import _parser as parser

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src"
FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split"}
CALL = re.compile(rf"\bre\.({'|'.join(FUNCTIONS)})\b")
ANCHORED = {"match", "fullmatch"}
CHARACTERS, SECONDS = 200_000, 20
SIGNS = [*"xX0 _-.,:/=\n\t'\"@#&?;<>()[]{}|+*~%$!^`\\\u00e9\u4e2d", *map(chr, range(0x300))]
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}


def patterns():
    """(where, pattern, flags, function) of each call of re's functions in the source."""
    sources = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    uses = defaultdict(set)
    for source in sources.values():
        for owner, function in re.findall(r"\b(\w+)(?=\.(\w+))", source):
            uses[owner].add(function)
    for path, source in sources.items():
        if not CALL.search(source):
            continue
        tree, name = ast.parse(source), path.relative_to(ROOT).as_posix()
        named = dict(pair for node in ast.walk(tree) if isinstance(node, ast.Assign) for pair in assigned(node))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and CALL.fullmatch(called(node))]
        try:
            module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        except ImportError:  # of an extra that is not here
            continue
        for call in calls:
            given, *rest = call.args
            flags = next((keyword.value for keyword in call.keywords if keyword.arg == "flags"), None)
            if flags is None and called(call) == "re.compile" and rest:
                flags = rest[0]
            where = f"{name}:{call.lineno}"
            text = said_by(given, vars(module))
            assert text is not None, f"{where}: a pattern of a function's own values, which this test cannot read"
            number = int((flags is not None and said_by(flags, vars(module))) or 0)
            function = called(call).removeprefix("re.")
            if function == "compile":  # how it is used, wherever that is
                used = uses[named.get(call, "")]
                function = min(used & FUNCTIONS - ANCHORED or used & ANCHORED or {"search"})
            if isinstance(text, str):
                yield where, text, number, function


def called(node):
    """The name of a module's function that is called; of anything else, nothing."""
    function = node.func
    in_module = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
    return f"{function.value.id}.{function.attr}" if in_module else ""


def assigned(node):
    """(value, name) of each that is assigned."""
    (target,) = node.targets[:1]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        yield from zip(node.value.elts, map(ast.unparse, target.elts), strict=False)
    else:
        yield node.value, ast.unparse(target)


def said_by(node, names):
    """What an expression is in its module, with an x for what a function puts into it; None if all is a function's."""
    try:
        return eval(ast.unparse(node), names)
    except NameError:
        if not isinstance(node, ast.JoinedStr):
            return None
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
        return "".join(str(said_by(part, names) or "x") for part in parts)


FOUND = list(patterns())


def sample(node):
    """Some text that a part of a pattern takes."""
    text = ""
    for code, value in node:
        if code is codes.BRANCH:
            text += sample(value[1][0])
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            text += sample(value[-1] if code is codes.SUBPATTERN else value)
        elif code in REPEATS:
            text += sample(value[2]) * max(value[0], 1)
        elif code is codes.LITERAL:
            text += chr(value)
        elif code in (codes.NOT_LITERAL, codes.ANY, codes.IN):
            one = compiler.compile(parser.SubPattern(node.state, [(code, value)]))
            text += next((sign for sign in SIGNS if one.fullmatch(sign)), "x")
        elif code is codes.GROUPREF:
            text += "x"
    return text


def worst(node, before=""):
    """(what stands before, what is repeated) for each part of a pattern that may be repeated, and for the whole."""
    for number, (code, value) in enumerate(node):
        ahead = before + sample(node[:number])
        if code in REPEATS:
            yield ahead, sample(value[2])
            yield "", ahead + sample(value[2])
            yield "", ahead
            yield from worst(value[2], ahead)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from worst(branch, ahead)
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            yield from worst(value[-1] if code is codes.SUBPATTERN else value, ahead)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from worst(value[1], ahead)


@pytest.mark.parametrize(("where", "pattern", "flags", "function"), FOUND, ids=[one[0] for one in FOUND])
def test_each_pattern_is_linear(where, pattern, flags, function):
    for before, again in sorted({(before, again) for before, again in worst(parser.parse(pattern, flags)) if again}):
        text = before + again * (CHARACTERS // len(again)) + "\n\0"
        tried = f"{function} is worse than linear on {before[:40]!r}, then {again[:40]!r} again and again"
        with hanging(f"{where}: {pattern!r}: {tried}"):
            apply(re.compile(pattern, flags), function, text)


def apply(pattern, function, text):
    if function in ANCHORED:
        getattr(pattern, function)(text)
    else:
        for _ in islice(pattern.finditer(text), 1000):
            pass


@contextmanager
def hanging(message):
    """Raises `AssertionError` after some seconds."""

    def hangs(number, frame):
        raise AssertionError(message)

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("pattern", [r"[\w.+-]+@\w+\.\w+", r"([a-z][a-z0-9+.-]*://)([^\s/]*)@", r"(a+)+b"])
def test_what_is_quadratic_would_be_found(pattern, monkeypatch):
    """As addresses of mails and servers once were looked for."""
    monkeypatch.setitem(globals(), "SECONDS", 1)
    with pytest.raises(AssertionError, match="worse than linear"):
        test_each_pattern_is_linear("here", pattern, 0, "search")
