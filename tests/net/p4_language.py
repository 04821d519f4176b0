# SPDX-License-Identifier: Apache-2.0
"""As much of P4 as the programs of src/dataplane/p4 are written in: text to trees, and no more.
What is not known here is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

TOKEN = re.compile(
    r"\s+|//[^\n]*|\#include[^\n]*"
    r"|(?P<token>\d+w\d+|0x[0-9A-Fa-f]+|\d+|[A-Za-z_]\w*|@\w+|&&&|\|-\||\+\+|==|!=|&&|\|\||[^\s\w])"
)
# From those that bind least.
BINARY = (("||",), ("&&",), ("==", "!="), ("<",), ("|",), ("^",), ("&",), ("++", "+", "|-|"))
Tree = tuple[Any, ...]


@dataclasses.dataclass
class Table:
    keys: list[tuple[Tree, str]]
    default: Tree
    entries: list[tuple[list[Tree], Tree]]


@dataclasses.dataclass
class Block:
    """A parser or a control."""

    parameters: list[str]
    states: dict[str, tuple[list[Tree], Tree]] = dataclasses.field(default_factory=dict)
    actions: dict[str, tuple[list[tuple[str, int]], list[Tree]]] = dataclasses.field(
        default_factory=dict
    )
    tables: dict[str, Table] = dataclasses.field(default_factory=dict)
    registers: dict[str, str] = dataclasses.field(default_factory=dict)  # type of an element
    register_actions: dict[str, tuple[str, list[str], list[Tree]]] = dataclasses.field(
        default_factory=dict
    )
    body: list[Tree] = dataclasses.field(default_factory=list)


class Program:
    def __init__(self, text: str) -> None:
        self.words: list[str] = []
        at = 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                raise SyntaxError(f"'{text[at : at + 20]}'")
            if match["token"]:
                self.words.append(match["token"])
            at = match.end()
        self.at = 0
        self.types: dict[str, dict[str, str]] = {}  # fields of headers and structs
        self.headers: set[str] = set()
        self.constants: dict[str, Tree] = {}
        self.blocks: dict[str, Block] = {}
        while self.at < len(self.words):
            self._declaration()

    def next(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def take(self, *expected: str) -> str:
        word = self.next()
        if expected and word not in expected:
            near = " ".join(self.words[self.at - 8 : self.at + 4])
            raise SyntaxError(f"'{word}' instead of {expected}, in: {near}")
        self.at += 1
        return word

    def has(self, word: str) -> bool:
        if self.next() != word:
            return False
        self.at += 1
        return True

    def many(self, end: str, one: Callable[[], Any], between: str = "") -> list[Any]:
        all_of_them = []
        while not self.has(end):
            all_of_them.append(one())
            if between and self.next() != end:
                self.take(between)
        return all_of_them

    def type_name(self) -> str:
        name = self.take()
        if self.has("<"):
            inside = self.many(">", self.type_name, ",")
            name += "<" + ",".join(inside) + ">"
        return name

    # --- Declarations

    def _declaration(self) -> None:
        kind = self.take()
        if kind in ("header", "struct"):
            name = self.take()
            self.take("{")
            self.types[name] = dict(self.many("}", self._field))
            if kind == "header":
                self.headers.add(name)
        elif kind == "const":
            self.type_name()
            name = self.take()
            self.take("=")
            self.constants[name] = self.expression()
            self.take(";")
        elif kind in ("parser", "control"):
            self._block(kind)
        else:  # the program's parts put together; whoever runs it knows their order
            while not self.has(";"):
                self.at += 1

    def _field(self) -> tuple[str, str]:
        kind = self.type_name()
        name = self.take()
        self.take(";")
        return name, kind

    def _parameter(self) -> tuple[str, int]:
        while self.next() in ("in", "out", "inout"):
            self.at += 1
        kind = self.type_name()
        return self.take(), int(kind[4:-1]) if kind.startswith("bit<") else 0

    def _parameters(self) -> list[tuple[str, int]]:
        self.take("(")
        return self.many(")", self._parameter, ",")

    def _block(self, kind: str) -> None:
        name = self.take()
        block = Block([parameter for parameter, _ in self._parameters()])
        self.take("{")
        self.many("}", lambda: self._member(block))
        self.blocks[name] = block

    def _member(self, block: Block) -> None:
        kind = self.type_name()
        if kind == "state":
            name = self.take()
            self.take("{")
            statements = []
            while not self.has("transition"):
                statements.append(self.statement())
            block.states[name] = (statements, self._transition())
            self.take("}")
        elif kind == "action":
            name = self.take()
            block.actions[name] = (self._parameters(), self.statements())
        elif kind == "table":
            self._table(block)
        elif kind == "apply":
            block.body = self.statements()
        else:
            self._instance(block, kind)

    def _instance(self, block: Block, kind: str) -> None:
        self.take("(")
        arguments = self.many(")", self.expression, ",")
        name = self.take()
        if kind.lower().startswith("register<"):
            block.registers[name] = kind[kind.index("<") + 1 : -1].split(",")[0]
        if kind.startswith("RegisterAction<"):
            for word in ("=", "{", "void", "apply"):
                self.take(word)
            parameters = [parameter for parameter, _ in self._parameters()]
            block.register_actions[name] = (arguments[0][1], parameters, self.statements())
            self.take("}")
        self.take(";")

    def _transition(self) -> Tree:
        if not self.has("select"):
            name = self.take()
            self.take(";")
            return ("go", name)
        self.take("(")
        values = self.many(")", self.expression, ",")
        self.take("{")
        return ("select", values, self.many("}", self._case))

    def _case(self) -> tuple[list[Tree] | None, str]:
        keys = None if self.has("default") else self._keys()
        self.take(":")
        name = self.take()
        self.take(";")
        return keys, name

    def _keys(self) -> list[Tree]:
        return self.many(")", self._key, ",") if self.has("(") else [self._key()]

    def _key(self) -> Tree:
        if self.has("_"):
            return ("any",)
        value = self.expression()
        return ("mask", value, self.expression()) if self.has("&&&") else ("value", value)

    def _table(self, block: Block) -> None:
        name = self.take()
        table = Table([], ("call", ("name", "NoAction"), []), [])
        self.take("{")
        while not self.has("}"):
            part = self.take("const", "key", "actions", "default_action", "size")
            if part == "const":
                self.take("entries")
            self.take("=")
            if part == "key":
                self.take("{")
                table.keys = self.many("}", self._table_key)
            elif part == "const":
                self.take("{")
                table.entries = self.many("}", self._entry)
            elif part == "default_action":
                table.default = self.expression()
                self.take(";")
            else:
                while self.take() != ("}" if part == "actions" else ";"):
                    pass
        block.tables[name] = table

    def _table_key(self) -> tuple[Tree, str]:
        value = self.expression()
        self.take(":")
        kind = self.take("exact", "ternary")
        self.take(";")
        return value, kind

    def _entry(self) -> tuple[list[Tree], Tree]:
        keys = self._keys()
        self.take(":")
        call = self.expression()
        self.take(";")
        return keys, call

    # --- Statements

    def statements(self) -> list[Tree]:
        self.take("{")
        return self.many("}", self.statement)

    def statement(self) -> Tree:
        self.has("@atomic")
        if self.next() == "{":
            return ("block", self.statements())
        if self.has("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            then = self.statement()
            return ("if", condition, then, self.statement() if self.has("else") else ("block", []))
        if self.next() in ("bit", "bool"):
            kind = self.type_name()
            name = self.take()
            value = self.expression() if self.has("=") else None
            self.take(";")
            return ("declare", kind, name, value)
        left = self.expression()
        if self.has(";"):
            return ("do", left)
        self.take("=")
        right = self.expression()
        self.take(";")
        return ("set", left, right)

    # --- Expressions

    def expression(self) -> Tree:
        value = self._binary(0)
        if not self.has("?"):
            return value
        then = self.expression()
        self.take(":")
        return ("choose", value, then, self.expression())

    def _binary(self, level: int) -> Tree:
        if level == len(BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self.next() in BINARY[level]:
            operator = self.take()
            left = (operator, left, self._binary(level + 1))
        return left

    def _unary(self) -> Tree:
        if self.has("!"):
            return ("not", self._unary())
        if self.next() == "(" and self.words[self.at + 1] == "bit":
            self.take("(")
            kind = self.type_name()
            self.take(")")
            return ("cast", int(kind[4:-1]), self._unary())
        return self._postfix()

    def _postfix(self) -> Tree:
        value = self._primary()
        while True:
            if self.has("."):
                value = ("field", value, self.take())
            elif self.has("("):
                value = ("call", value, self.many(")", self.expression, ","))
            elif self.has("["):
                high = int(self.take())
                self.take(":")
                value = ("slice", value, high, int(self.take()))
                self.take("]")
            else:
                return value

    def _primary(self) -> Tree:
        word = self.take()
        if word == "(":
            value = self.expression()
            self.take(")")
            return value
        if word == "{":
            return ("list", self.many("}", self.expression, ","))
        if word[0].isdigit():
            width, number = word.split("w") if "w" in word else ("0", word)
            return ("number", int(number, 0), int(width))
        if word[0].isalpha():
            return ("name", word)
        raise SyntaxError(f"'{word}' where a value should be")
