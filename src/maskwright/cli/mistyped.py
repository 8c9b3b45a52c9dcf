"""Options of other programs in a command line: the replacement of each, and the whole line corrected."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from typing import Any, NamedTuple

from maskwright.config import finetuning, pretraining
from maskwright.config.finetuning import OF_A_COMPARISON
from maskwright.config.foreign_names import COMMANDS, OPTIONS
from maskwright.config.recipes import names
from maskwright.config.retrieval import kind_of
from maskwright.config.settings import Guide, is_misspelt, keys_in, keys_of
from maskwright.core import hub
from maskwright.core.console import FALSE, TRUE, is_option, typed
from maskwright.core.errors import ConfigError, InputError, MaskwrightError


class _Unknown(NamedTuple):
    option: str
    advice: str
    words: list[str]
    """The words to type instead; none if the advice is a sentence."""


def unknown_options(error: Any, words: list[str]) -> InputError:
    """The error for all unknown options of a command line, although the parser has met only one. `words`: the line
    after `maskwright`."""
    path = error.ctx.command_path
    begin = path.split()[1:]
    reader = _Reader(error.ctx.command, path, is_labelled=_is_labelled(words))
    if words[: len(begin)] == begin:
        reader.read(words[len(begin) :])
    if not reader.unknown:  # several letters behind one dash
        reader.read([error.option_name])
    if len(reader.unknown) == 1:
        only = reader.unknown[0]
        return InputError(f"no option {only.option}", where=path, fix=only.advice)
    lines = [str(InputError(f"no option {each.option}", fix=each.advice)) for each in reader.unknown]
    what = f"{len(lines)} of these options have other names here, or none; below is each, and then the whole command"
    return ConfigError(what, where=path, fix=None, lines=[*lines, typed([*begin, *reader.line])])


def _is_labelled(words: list[str]) -> bool:
    """Whether one of the words is the YAML, or the recipe, of a fine-tuning."""
    for word in words:
        if word in names("finetune") or (word.endswith((".yaml", ".yml")) and os.path.isfile(word)):
            with suppress(MaskwrightError):
                return kind_of(word) == "finetune"
    return False


class _Reader:
    """Reads the words after a command's name as the parser does, and replaces unknown options by ours."""

    def __init__(self, command: Any, path: str, *, is_labelled: bool) -> None:
        self.path, self.compares = path, command.name == "compare"
        self.known = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
        self.needed = sum(each.param_type_name == "argument" and each.required for each in command.params)
        is_labelled = is_labelled or self.compares or command.name == "finetune"
        self.guide: Guide = (finetuning if is_labelled else pretraining).GUIDE
        self.required = [each for each in command.params if each.param_type_name == "option" and each.required]
        self.line: list[str] = []
        self.unknown: list[_Unknown] = []

    def read(self, words: list[str]) -> None:
        rest, doubtful = list(words), []
        while rest:
            word = rest.pop(0)
            option, equals, value = word.partition("=")
            self.line.append(word)
            if not is_option(word):
                self.needed -= 1
            elif option in self.known:
                count = 0 if equals or self.known[option].is_flag else self.known[option].nargs
                self.line += rest[:count]
                del rest[:count]
            else:
                self.line.pop()
                advice = self._advice(option)
                count = 0 if equals else self._values(advice, rest)
                if count and not (keys_in(advice) or advice.startswith("--")):
                    doubtful.append((len(self.line), rest[0]))
                given, rest = value if equals else " ".join(rest[:count]), rest[count:]
                self.unknown.append(self._instead(option, advice, given))
                self.line += self.unknown[-1].words
        if self.needed > 0 and doubtful:  # what seemed to be the value of a switch is the command's own argument
            self.line.insert(*doubtful[0])
        for option in self.required:
            if not {*option.opts} & {word.partition("=")[0] for word in self.line}:
                self.line += [option.opts[0], option.metavar or "VALUE"]

    def _advice(self, option: str) -> str:
        """One of our options, keys, or a sentence."""
        if option == "--json":
            return "put it after the command, as in `maskwright doctor --json`"
        name, keys = option.lstrip("-").replace("-", "_"), keys_of(self.guide.section)
        if moved := COMMANDS.get(f"{self.path.partition(' ')[2]} --{name}"):
            return moved
        if ours := next((each for each in OPTIONS.get(name, ()) if each in self.known), None):
            return ours
        is_key = name in {*self.guide.foreign, *keys} or any(key.endswith(f".{name}") for key in keys)
        near = [other for other in self.known if is_misspelt(option.lstrip("-"), other.lstrip("-"))]
        if near and not (is_key and "--set" in self.known):
            return near[0]
        advice = self.guide.nearest(name) if "--set" in self.known else None
        if self.compares and (own := next((key for key in keys_in(advice or "") if key in OF_A_COMPARISON), None)):
            return f"leave it out, since a comparison sets {own} itself"
        return advice or f"`{self.path} --help` lists them"

    def _values(self, advice: str, rest: list[str]) -> int:
        """How many of the following words are values of the option that the advice is for."""
        count = next((index for index, word in enumerate(rest) if is_option(word)), len(rest))
        open_ = [word for word in keys_in(advice) if "=" not in word]
        is_switch = self.known[advice].is_flag if advice in self.known else bool(keys_in(advice)) and not open_
        if is_switch:
            return int(count > 0 and rest[0].lower() in (*TRUE, *FALSE))
        lists = [key for key in open_ if (found := keys_of(self.guide.section).get(key)) and found.holds_many]
        return count if len(open_) > 1 or lists else min(count, 1)

    def _instead(self, option: str, advice: str, value: str) -> _Unknown:
        if advice in self.known:
            is_flag = self.known[advice].is_flag
            words = [advice] if is_flag else [advice, value or self.known[advice].metavar or "VALUE"]
            return _Unknown(option, f"did you mean {advice}?", words)
        words = keys_in(advice)
        if words and not any("=" not in word for word in words) and value.lower() in FALSE:
            return _Unknown(option, "leave it out, since it is off", [])
        given = self.guide.overrides(advice, value)
        if isinstance(given, str):
            return _Unknown(option, given, [])
        if "model.init_from" in given:
            given["model.init_from"] = hub.as_location(given["model.init_from"])
        words = [word for key, text in given.items() for word in ("--set", f"{key}={text}")]
        return _Unknown(option, shlex.join(words), words)
