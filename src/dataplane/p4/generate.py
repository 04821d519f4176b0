#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The aggregator as a P4 program: one description, printed for v1model (bmv2) or TNA (Tofino 1).

docs/p4.md has the words, src/aggregate/slots.cc the state machine. What both programs share stands
once: headers.p4.in, parser.p4.in, egress.p4.in, and ingress.p4.in with the table `verdicts`, which
says what becomes of a contribution. They differ in how registers are accessed: bmv2 reads and
writes them as it likes, Tofino once a packet, so there the last one of a turn passes twice.

Usage: generate.py v1model|tna [--words N] [--cells N] > PROGRAM
"""

from __future__ import annotations

import argparse
from pathlib import Path
from string import Template

WORDS = 24  # 32-bit words of the longest payload: what 12 stages of Tofino 1 have room for
CELLS = 4096  # slots of all jobs together
MEMBERS = 2048  # workers of all jobs together
UDP_AND_FRAME = 8 + 40  # bytes of headers before the payload
IPV4_FIELDS = (
    "version words service length identification reserved whole more offset hops protocol from to"
)

# What the two architectures call things.
NAMES = {
    "v1model": {
        "unicast": "standard.egress_spec = port;",
        "multicast": "standard.mcast_grp = group;",
        "drop": "mark_to_drop(standard);",
        "copy": "standard.egress_rid",
    },
    "tna": {
        "unicast": "manager.ucast_egress_port = port;",
        "multicast": "manager.mcast_grp_a = group;",
        "drop": "deparsed.drop_ctl = 1;",
        "copy": "intrinsic.egress_rid",
    },
}


def fill(part: str, **values: object) -> str:
    """A part of the description, with these values in it."""
    text = (Path(__file__).parent / f"{part}.p4.in").read_text()
    return Template(text).substitute({name: str(value) for name, value in values.items()})


def lines(text: str, numbers: range) -> str:
    """The text once for each number."""
    return "".join(Template(text).substitute(i=i, before=i - 1) for i in numbers)


def parser(words: int) -> str:
    sizes = range(4, 4 * words + 1, 4)
    chain = lines(
        "    state word$i { packet.extract(hdr.w$i); transition word$before; }\n",
        range(words - 1, 0, -1),
    )
    return fill(
        "parser",
        lengths="".join(f"            {UDP_AND_FRAME + size}: frame;\n" for size in sizes),
        pairs="".join(
            f"            ({UDP_AND_FRAME + size}, {size}): word{size // 4 - 1};\n"
            for size in sizes
        ),
        chain=chain + "    state word0 { packet.extract(hdr.w0); transition accept; }\n",
    )


def program(target: str, words: int, cells: int) -> str:
    banks, each = 2 * cells, range(words)
    names = NAMES[target]
    word = "".join(fill(f"{target}_word", i=i, banks=banks) for i in each)
    if target == "v1model":
        registers, values = lines(f"    register<bit<32>>({banks}) v$i;\n", each), word
    else:
        registers, values = word, lines("                word_$i.apply();\n", each)
    return fill(
        target,
        notice="SPDX-License-Identifier: Apache-2.0\n"
        f"// Made by generate.py {target} --words {words} --cells {cells}: change that one.",
        headers=fill("headers", words=lines("    word_t w$i;\n", each)),
        parser=parser(words),
        tables=fill(
            "ingress", members=MEMBERS, zero=lines("        hdr.w$i.value = 0;\n", each), **names
        ),
        receivers=fill("egress", members=MEMBERS, **names),
        registers=registers,
        values=values,
        emits=lines("        packet.emit(hdr.w$i);\n", range(words - 1, -1, -1)),
        ipv4_fields=", ".join(f"hdr.ipv4.{name}" for name in IPV4_FIELDS.split()),
        cells=cells,
        banks=banks,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description="The aggregator as a P4 program.")
    arguments.add_argument("target", choices=tuple(NAMES))
    arguments.add_argument("--words", type=int, default=WORDS, help="32-bit words of a payload")
    arguments.add_argument("--cells", type=int, default=CELLS, help="slots of all jobs together")
    given = arguments.parse_args()
    if not 2 <= given.words <= 352 or given.words % 2 != 0:
        arguments.error("a payload has 2 to 352 words, an even number")
    if given.target == "tna" and given.words > WORDS:
        arguments.error(f"one pass of Tofino 1 has room for {WORDS} words")
    if not 1 <= given.cells <= 32768:
        arguments.error("a switch has 1 to 32768 slots")
    print(program(given.target, given.words, given.cells), end="")


if __name__ == "__main__":
    main()
