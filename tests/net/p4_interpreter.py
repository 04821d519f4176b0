# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of src/dataplane/p4 packet by packet, from their text, where there is no
switch. Takes the commands of bmv2's command line that the controller uses.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from p4_language import Block, Program, Tree

DROP_PORT = 511
RECIRCULATION = 68


def width_of(kind: str) -> int:
    return int(kind[4:-1]) if kind.startswith("bit<") else 0


class Record:
    """A header or a struct. Fields without a width take anything."""

    def __init__(self, fields: dict[str, Any] | None = None, widths: dict[str, int] | None = None):
        self.fields = fields if fields is not None else {}
        self.widths = widths if widths is not None else {}
        self.valid = False


@dataclasses.dataclass
class Packet:
    data: bytes
    at: int = 0  # bytes that were taken


class Run:
    """A parser or a control at work on a packet."""

    def __init__(self, switch: Interpreter, name: str, arguments: list[Any]) -> None:
        self.switch, self.name = switch, name
        self.block: Block = switch.program.blocks[name]
        self.scope: dict[str, Any] = dict(zip(self.block.parameters, arguments))
        self.widths: dict[str, int] = {}

    def parse(self) -> None:
        state = "start"
        while state != "accept":
            statements, transition = self.block.states[state]
            self.run(statements)
            if transition[0] == "go":
                state = transition[1]
                continue
            values = [self.value(tree) for tree in transition[1]]
            state = next(
                name for keys, name in transition[2] if keys is None or self.fits(keys, values)
            )

    def apply(self) -> None:
        self.run(self.block.body)

    # --- Statements

    def run(self, statements: list[Tree]) -> None:
        for statement in statements:
            self.step(statement)

    def step(self, statement: Tree) -> None:
        kind = statement[0]
        if kind == "block":
            self.run(statement[1])
        elif kind == "if":
            self.step(statement[2] if self.value(statement[1]) else statement[3])
        elif kind == "declare":
            _, of, name, value = statement
            self.widths[name] = width_of(of)
            self.scope[name] = self.value(value) if value is not None else 0
        elif kind == "do":
            self.value(statement[1])
        else:
            self.put(statement[1], self.value(statement[2]))

    def put(self, left: Tree, value: int) -> None:
        if left[0] == "name":
            width = self.widths.get(left[1], 0)
            self.scope[left[1]] = value & (1 << width) - 1 if width else value
            return
        record = self.value(left[1])
        width = record.widths.get(left[2], 0)
        record.fields[left[2]] = value & (1 << width) - 1 if width else value

    # --- Expressions

    def value(self, tree: Tree) -> Any:
        return EVALUATE[tree[0]](self, *tree[1:])

    def width(self, tree: Tree) -> int:
        """Of a value, in bits; 0: of none."""
        kind = tree[0]
        if kind == "number":
            return int(tree[2])
        if kind == "field":
            record = self.value(tree[1])
            return record.widths.get(tree[2], 0) if isinstance(record, Record) else 0
        if kind == "name":
            return self.widths.get(tree[1], 0)
        if kind == "slice":
            return int(tree[2] - tree[3] + 1)
        if kind == "++":
            return self.width(tree[1]) + self.width(tree[2])
        if kind == "cast":
            return int(tree[1])
        return max((self.width(part) for part in tree[1:] if isinstance(part, tuple)), default=0)

    def _number(self, number: int, _width: int) -> int:
        return number

    def _name(self, name: str) -> Any:
        if name in self.scope:
            return self.scope[name]
        if name in ("true", "false"):
            return int(name == "true")
        return self.value(self.switch.program.constants[name])

    def _field(self, of: Tree, name: str) -> Any:
        return self.value(of).fields[name]

    def _slice(self, of: Tree, high: int, low: int) -> int:
        return int(self.value(of) >> low & (1 << high - low + 1) - 1)

    def _cast(self, width: int, of: Tree) -> int:
        return int(self.value(of) & (1 << width) - 1)

    def _not(self, of: Tree) -> int:
        return int(not self.value(of))

    def _choose(self, condition: Tree, then: Tree, otherwise: Tree) -> Any:
        return self.value(then if self.value(condition) else otherwise)

    def _list(self, values: list[Tree]) -> list[tuple[int, int]]:
        return [(self.value(value), self.width(value)) for value in values]

    def _either(self, left: Tree, right: Tree) -> int:
        return int(bool(self.value(left)) or bool(self.value(right)))

    def _both(self, left: Tree, right: Tree) -> int:
        return int(bool(self.value(left)) and bool(self.value(right)))

    def _equal(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) == self.value(right))

    def _unequal(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) != self.value(right))

    def _less(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) < self.value(right))

    def _or(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) | self.value(right))

    def _xor(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) ^ self.value(right))

    def _and(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) & self.value(right))

    def _join(self, left: Tree, right: Tree) -> int:
        return int(self.value(left) << self.width(right) | self.value(right))

    def _plus(self, left: Tree, right: Tree) -> int:
        width = max(self.width(left), self.width(right))
        return int(self.value(left) + self.value(right) & (1 << width) - 1)

    def _minus(self, left: Tree, right: Tree) -> int:
        return max(0, int(self.value(left) - self.value(right)))

    # --- Calls

    def _call(self, what: Tree, arguments: list[Tree]) -> Any:
        if what[0] == "name":
            return self.call_name(what[1], arguments)
        of, method = what[1], what[2]
        if of[0] == "name" and of[1] not in self.scope:
            return self.call_member(of[1], method, arguments)
        target = self.value(of)
        if isinstance(target, Record):
            if method == "isValid":
                return int(target.valid)
            target.valid = {"setValid": True, "setInvalid": False}[method]
            return None
        return self.call_packet(target, method, arguments)

    def call_name(self, name: str, arguments: list[Tree]) -> Any:
        if name == "update_checksum":
            condition, fields, to, _algorithm = arguments
            if self.value(condition):
                self.put(to, checksum(self.value(fields)))
            return None
        values = [self.value(argument) for argument in arguments]
        if name in self.block.actions:
            return self.act(name, values)
        if name == "max":
            return max(values)
        if name == "mark_to_drop":
            values[0].fields.update(egress_spec=DROP_PORT, mcast_grp=0)
            return None
        raise NameError(name)

    def act(self, name: str, values: list[int]) -> None:
        if name == "NoAction":
            return
        parameters, statements = self.block.actions[name]
        outside, outside_widths = self.scope, self.widths
        own = {parameter: value for (parameter, _), value in zip(parameters, values)}
        self.scope, self.widths = {**outside, **own}, {**outside_widths, **dict(parameters)}
        self.run(statements)
        self.scope, self.widths = outside, outside_widths

    def call_member(self, name: str, method: str, arguments: list[Tree]) -> Any:
        values = [self.value(argument) for argument in arguments if method != "read"]
        if name in self.block.tables:
            return self.look_up(name)
        if name in self.block.register_actions:
            return self.access(name, values[0])
        if name in self.block.registers:
            register = self.switch.registers[f"{self.name}.{name}"]
            if method == "write":
                register[values[0]] = values[1]
            else:
                self.put(arguments[0], register.get(self.value(arguments[1]), 0))
            return None
        if name == "counted":
            self.switch.counters[values[0]] = self.switch.counters.get(values[0], 0) + 1
            return None
        if name == "checksum":
            return checksum(values[0])
        if name == "this":  # of a register action: one of four bits
            return 1 << (values[0] | values[1] << 1)
        raise NameError(name)

    def access(self, name: str, index: int) -> int:
        """A register action, which may be done once a packet."""
        register, parameters, statements = self.block.register_actions[name]
        full = f"{self.name}.{register}"
        assert full not in self.switch.accessed, f"{full} is accessed twice"
        self.switch.accessed.add(full)
        cells = self.switch.registers[full]
        fields = self.switch.program.types.get(self.block.registers[register])
        inner = Run(self.switch, self.name, [])
        inner.scope = {**self.scope, **dict.fromkeys(parameters, 0)}
        if fields is None:
            inner.scope[parameters[0]] = cells.get(index, 0)
            inner.widths[parameters[0]] = width_of(self.block.registers[register])
        else:
            widths = {field: width_of(kind) for field, kind in fields.items()}
            value = dict(cells.get(index) or dict.fromkeys(fields, 0))
            inner.scope[parameters[0]] = Record(value, widths)
        inner.run(statements)
        kept = inner.scope[parameters[0]]
        cells[index] = kept.fields if isinstance(kept, Record) else kept
        return int(inner.scope[parameters[1]]) if len(parameters) > 1 else 0

    def call_packet(self, packet: Any, method: str, arguments: list[Tree]) -> None:
        if method == "advance":
            return
        header: Record = self.value(arguments[0])
        if method == "emit":
            if header.valid:
                packet.data += pack(header)
            return
        assert method == "extract", method
        if header.widths:  # intrinsic metadata are there already
            size = sum(header.widths.values()) // 8
            assert packet.at + size <= len(packet.data), "read beyond the end"
            unpack(header, packet.data[packet.at : packet.at + size])
            packet.at += size

    # --- Tables

    def fits(self, keys: list[Tree], values: list[int]) -> bool:
        for key, value in zip(keys, values):
            if key[0] == "value" and value != self.value(key[1]):
                return False
            if key[0] == "mask" and (value ^ self.value(key[1])) & self.value(key[2]) != 0:
                return False
        return True

    def look_up(self, name: str) -> Record:
        table = self.block.tables[name]
        values = [self.value(key) for key, _ in table.keys]
        added = self.switch.entries.get(f"{self.name}.{name}", {}).get(tuple(values))
        constant = next((call for keys, call in table.entries if self.fits(keys, values)), None)
        if added is not None:
            self.act(*added)
        elif constant is not None:
            self.value(constant)
        elif table.default[0] == "call" and table.default[1] != ("name", "NoAction"):
            self.value(table.default)
        return Record({"hit": int(added is not None or constant is not None)})


NAMES = {
    "||": "either", "&&": "both", "==": "equal", "!=": "unequal", "<": "less", "|": "or",
    "^": "xor", "&": "and", "++": "join", "+": "plus", "|-|": "minus",
}  # fmt: skip
KINDS = "number name field slice cast not choose list call"
# By kind of an expression, what knows its value.
EVALUATE = {kind: getattr(Run, "_" + NAMES.get(kind, kind)) for kind in [*NAMES, *KINDS.split()]}


def pack(header: Record) -> bytes:
    number = bits = 0
    for name, width in header.widths.items():
        number, bits = number << width | header.fields[name], bits + width
    return number.to_bytes(bits // 8, "big")


def unpack(header: Record, data: bytes) -> None:
    number = int.from_bytes(data, "big")
    for name, width in reversed(header.widths.items()):
        header.fields[name] = number & (1 << width) - 1
        number >>= width
    header.valid = True


def checksum(fields: list[tuple[int, int]]) -> int:
    number = bits = 0
    for value, width in fields:
        number, bits = number << width | value, bits + width
    total = sum(number >> shift & 0xFFFF for shift in range(0, bits, 16))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF ^ total


class Interpreter:
    """A switch that runs a program for v1model or TNA."""

    def __init__(self, text: str) -> None:
        self.program = Program(text)
        self.is_tna = "FrameDeparser" not in self.program.blocks
        self.registers: dict[str, dict[int, Any]] = {
            f"{name}.{register}": {}
            for name, block in self.program.blocks.items()
            for register in block.registers
        }
        self.widths = {
            name: {field: width_of(kind) for field, kind in fields.items() if width_of(kind)}
            for name, fields in self.program.types.items()
        }
        self.entries: dict[str, dict[tuple[int, ...], tuple[str, list[int]]]] = {}
        self.handles: dict[str, dict[int, tuple[int, ...]]] = {}
        self.groups: dict[int, list[int]] = {}
        self.nodes: dict[int, tuple[int, int]] = {}  # number of the copy, port
        self.counters: dict[int, int] = {}
        self.accessed: set[str] = set()

    def record(self, name: str) -> Record:
        types = self.program.types
        fields = {f: self.record(kind) if kind in types else 0 for f, kind in types[name].items()}
        return Record(fields, self.widths[name])

    def send(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        """What leaves the switch, by port, when this arrives."""
        return self._tna(port, data) if self.is_tna else self._v1model(port, data)

    def copies(self, group: int) -> list[tuple[int, int]]:
        return [self.nodes[node] for node in self.groups.get(group, [])]

    def _v1model(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        out = []
        packet, hdr, meta = Packet(data), self.record("headers_t"), self.record("metadata_t")
        fields = {"ingress_port": port, "egress_spec": 0, "mcast_grp": 0, "egress_rid": 0}
        standard = Record(fields)
        Run(self, "FrameParser", [packet, hdr, meta, standard]).parse()
        Run(self, "Folding", [hdr, meta, standard]).apply()
        rest = data[packet.at :]
        kept = pack_all(hdr)
        if standard.fields["mcast_grp"]:
            ways = self.copies(standard.fields["mcast_grp"])
        else:
            ways = [(0, standard.fields["egress_spec"])]
        for number, to in ways:
            if to == DROP_PORT:
                continue
            unpack_all(hdr, kept)
            standard.fields.update(egress_rid=number, egress_port=to, egress_spec=to)
            Run(self, "Addressing", [hdr, meta, standard]).apply()
            Run(self, "Checksums", [hdr, meta]).apply()
            if standard.fields["egress_spec"] != DROP_PORT:
                out.append((to, self._deparse("FrameDeparser", [hdr]) + rest))
        return out

    def _tna(self, port: int, data: bytes) -> list[tuple[int, bytes]]:
        self.accessed.clear()
        packet, hdr, meta = Packet(data), self.record("headers_t"), self.record("metadata_t")
        intrinsic, none = Record({"ingress_port": port}), Record()
        deparsed, manager = Record({"drop_ctl": 0}), Record()
        Run(self, "IngressParser", [packet, hdr, meta, intrinsic]).parse()
        Run(self, "Folding", [hdr, meta, intrinsic, none, deparsed, manager]).apply()
        if deparsed.fields["drop_ctl"]:
            return []
        between = self._deparse("IngressDeparser", [hdr, meta, deparsed]) + data[packet.at :]
        ways = self.copies(manager.fields.get("mcast_grp_a", 0))
        if "ucast_egress_port" in manager.fields:
            ways = [*ways, (0, manager.fields["ucast_egress_port"])]
        out = []
        for number, to in ways:
            packet, hdr, meta = Packet(between), self.record("headers_t"), self.record("metadata_t")
            intrinsic = Record({"egress_port": to, "egress_rid": number})
            Run(self, "EgressParser", [packet, hdr, meta, intrinsic]).parse()
            Run(self, "Addressing", [hdr, meta, intrinsic, none, deparsed, none]).apply()
            after = self._deparse("EgressDeparser", [hdr, meta, deparsed]) + between[packet.at :]
            out += self._tna(to, after) if to == RECIRCULATION else [(to, after)]
        return out

    def _deparse(self, name: str, arguments: list[Any]) -> bytes:
        packet = Packet(b"")
        Run(self, name, [packet, *arguments]).apply()
        return packet.data

    # --- Commands

    def tell(self, commands: Iterable[str]) -> str:
        return "".join(self._do(*command.split()) for command in commands)

    def _do(self, command: str, *words: str) -> str:
        if command == "table_add":
            return self._add(words[0], list(words[1:]))
        if command == "table_dump":
            return self._dump(words[0])
        if command == "mc_dump":
            return self._dump_groups()
        numbers = [int(word) for word in words if word.isdigit()]
        if command == "register_write":
            self.registers[words[0]][numbers[0]] = numbers[1] or None
            if not numbers[1]:
                del self.registers[words[0]][numbers[0]]
        elif command == "counter_read":
            count = self.counters.get(numbers[0], 0)
            return f"{words[0]}[{words[1]}]= (0 bytes, {count} packets)\n"
        elif command == "table_clear":
            self.entries.pop(words[0], None)
            self.handles.pop(words[0], None)
        elif command == "table_delete":
            del self.entries[words[0]][self.handles[words[0]].pop(numbers[0])]
        elif command == "mc_mgrp_create":
            assert numbers[0] not in self.groups, "the group is there"
            self.groups[numbers[0]] = []
        elif command == "mc_mgrp_destroy":
            del self.groups[numbers[0]]
        elif command == "mc_node_create":
            node = max(self.nodes, default=-1) + 1
            self.nodes[node] = (numbers[0], numbers[1])
            return f"node was created with handle {node}\n"
        elif command == "mc_node_destroy":
            del self.nodes[numbers[0]]
            for nodes in self.groups.values():
                nodes[:] = [node for node in nodes if node != numbers[0]]
        else:
            assert command == "mc_node_associate", command
            self.groups[numbers[0]].append(numbers[1])
        return ""

    def _add(self, table: str, words: list[str]) -> str:
        control, name = table.split(".")
        entries = self.entries.setdefault(table, {})
        keys = len(self.program.blocks[control].tables[name].keys)
        action, match, values = words[0].split(".")[1], words[1 : keys + 1], words[keys + 2 :]
        assert words[keys + 1] == "=>", words
        parameters = self.program.blocks[control].actions[action][0]
        assert len(values) == len(parameters), f"{action} wants {len(parameters)}"
        key = tuple(map(number_of, match))
        assert key not in entries, "DUPLICATE_ENTRY"
        entries[key] = (action, list(map(number_of, values)))
        handles = self.handles.setdefault(table, {})
        handle = max(handles, default=-1) + 1
        handles[handle] = key
        return f"Entry has been added with handle {handle}\n"

    def _dump(self, table: str) -> str:
        """As bmv2's command line shows it."""
        control, name = table.split(".")
        block = self.program.blocks[control]
        keys = [key for key, _ in block.tables[name].keys]
        lines = ["==========", "TABLE ENTRIES"]
        for handle, key in self.handles.get(table, {}).items():
            action, values = self.entries[table][key]
            lines += ["**********", f"Dumping entry {handle:#x}", "Match key:"]
            lines += [f"* {path_of(at):20}: EXACT     {k:08x}" for at, k in zip(keys, key)]
            said = ", ".join(f"{value:02x}" for value in values)
            lines.append(f"Action entry: {control}.{action} - {said}")
        return (
            "\n".join([*lines, "==========", "Dumping default entry", "EMPTY", "=========="]) + "\n"
        )

    def _dump_groups(self) -> str:
        lines = ["==========", "MC ENTRIES"]
        for group, nodes in self.groups.items():
            lines += ["**********", f"mgrp({group})"]
            for node in nodes:
                copy, port = self.nodes[node]
                lines.append(f"  -> (L1h={node}, rid={copy}) -> (ports=[{port}], lags=[])")
        return "\n".join([*lines, "==========", "LAGS", "==========", ""])


def path_of(tree: Tree) -> str:
    return f"{path_of(tree[1])}.{tree[2]}" if tree[0] == "field" else str(tree[1])


def number_of(word: str) -> int:
    if re.fullmatch(r"\d+(\.\d+){3}", word):
        return int.from_bytes(bytes(map(int, word.split("."))), "big")
    return int(word.replace(":", ""), 16) if ":" in word else int(word, 0)


def pack_all(hdr: Record) -> dict[str, bytes | None]:
    return {name: pack(one) if one.valid else None for name, one in hdr.fields.items()}


def unpack_all(hdr: Record, kept: dict[str, bytes | None]) -> None:
    for name, data in kept.items():
        hdr.fields[name].valid = data is not None
        if data is not None:
            unpack(hdr.fields[name], data)
