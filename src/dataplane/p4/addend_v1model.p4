// SPDX-License-Identifier: Apache-2.0
// Made by generate.py v1model --words 24 --cells 4096: change that one.
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> to; bit<48> from; bit<16> ether_type; }
header ipv4_t {
    bit<4> version; bit<4> words; bit<8> service; bit<16> length; bit<16> identification;
    bit<1> reserved; bit<1> whole; bit<1> more; bit<13> offset;
    bit<8> hops; bit<8> protocol; bit<16> checksum; bit<32> from; bit<32> to;
}
header udp_t { bit<16> from; bit<16> to; bit<16> length; bit<16> checksum; }
// src/wire/frame.h
header frame_t {
    bit<8> magic; bit<8> version; bit<8> kind;
    bit<4> table_number; bit<1> entry; bit<1> resent; bit<1> partial; bit<1> big_endian;
    bit<32> epoch; bit<32> turn; bit<16> slot; bit<8> worker; bit<8> world;
    bit<8> op; bit<8> count; bit<16> length; bit<32> boot;
    bit<32> contributors_high; bit<32> contributors; bit<64> tag;
}
header word_t { bit<32> value; }
// A frame that passes once more: its turn is complete, and its result goes to this group.
header again_t { bit<16> cell; bit<16> group; }
struct headers_t {
    again_t again; ethernet_t ethernet; ipv4_t ipv4; udp_t udp; frame_t frame;
    word_t w0;
    word_t w1;
    word_t w2;
    word_t w3;
    word_t w4;
    word_t w5;
    word_t w6;
    word_t w7;
    word_t w8;
    word_t w9;
    word_t w10;
    word_t w11;
    word_t w12;
    word_t w13;
    word_t w14;
    word_t w15;
    word_t w16;
    word_t w17;
    word_t w18;
    word_t w19;
    word_t w20;
    word_t w21;
    word_t w22;
    word_t w23;
}
// A job has the cells base + slot; a cell has two banks, for even and for odd turns.
struct metadata_t {
    bit<16> cell;      // of the slot
    bit<17> bank;      // of the turn
    bit<16> beyond;    // not 0: the job has no such slot
    bit<16> excess;    // not 0: longer than the job's payload
    bit<32> own;       // bit of the sender
    bit<32> others;    // bits of all but the sender
    bit<32> all;
    bit<64> tag;       // of the job's results
    bit<16> group;     // multicast group of the job
    bit<3>  operation; // mode in which a contribution is combined
    bit<32> key;       // of the turn in its bank; never 0, which is a bank that has had none
    bit<32> shape;
    bit<1>  opens;     // this turn is the slot's next, or open
    bit<4>  known;     // the bank has 1: another turn, 2: this turn; 4, 8: so, and with this shape
    bit<32> seen;      // contributors so far
    bit<32> mine;      // not 0: the sender is one of them
    bit<32> rest;      // 0: the sender is the last
    bit<3>  mode;      // what the words' registers do
    bit<2>  audience;
}
const bit<3> NONE = 0;
const bit<3> BEGIN = 1;
const bit<3> SUM = 2;
const bit<3> OR = 3;
const bit<3> MAX = 4;
const bit<2> NOBODY = 0;
const bit<2> SENDER = 1;
const bit<2> EVERYONE = 2;

parser FrameParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
              inout standard_metadata_t standard) {
    state start { transition ethernet; }
    // Lengths are compared before anything is taken for a frame, so nothing short is read beyond its
    // end. The first word of the payload is the highest of the words that it has: any order will do,
    // as contributions to a turn are of one length.
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.more, hdr.ipv4.offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, 17): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.length) {
            52: frame;
            56: frame;
            60: frame;
            64: frame;
            68: frame;
            72: frame;
            76: frame;
            80: frame;
            84: frame;
            88: frame;
            92: frame;
            96: frame;
            100: frame;
            104: frame;
            108: frame;
            112: frame;
            116: frame;
            120: frame;
            124: frame;
            128: frame;
            132: frame;
            136: frame;
            140: frame;
            144: frame;
            default: accept;
        }
    }
    state frame {
        packet.extract(hdr.frame);
        transition select(hdr.frame.magic, hdr.frame.version, hdr.frame.kind,
                          hdr.frame.table_number, hdr.frame.partial, hdr.frame.big_endian) {
            (0xAD, 1, 1, 0, 0, 1): contribution;
            default: accept;
        }
    }
    state contribution {
        transition select(hdr.udp.length, hdr.frame.length) {
            (52, 4): word0;
            (56, 8): word1;
            (60, 12): word2;
            (64, 16): word3;
            (68, 20): word4;
            (72, 24): word5;
            (76, 28): word6;
            (80, 32): word7;
            (84, 36): word8;
            (88, 40): word9;
            (92, 44): word10;
            (96, 48): word11;
            (100, 52): word12;
            (104, 56): word13;
            (108, 60): word14;
            (112, 64): word15;
            (116, 68): word16;
            (120, 72): word17;
            (124, 76): word18;
            (128, 80): word19;
            (132, 84): word20;
            (136, 88): word21;
            (140, 92): word22;
            (144, 96): word23;
            default: accept;
        }
    }
    state word23 { packet.extract(hdr.w23); transition word22; }
    state word22 { packet.extract(hdr.w22); transition word21; }
    state word21 { packet.extract(hdr.w21); transition word20; }
    state word20 { packet.extract(hdr.w20); transition word19; }
    state word19 { packet.extract(hdr.w19); transition word18; }
    state word18 { packet.extract(hdr.w18); transition word17; }
    state word17 { packet.extract(hdr.w17); transition word16; }
    state word16 { packet.extract(hdr.w16); transition word15; }
    state word15 { packet.extract(hdr.w15); transition word14; }
    state word14 { packet.extract(hdr.w14); transition word13; }
    state word13 { packet.extract(hdr.w13); transition word12; }
    state word12 { packet.extract(hdr.w12); transition word11; }
    state word11 { packet.extract(hdr.w11); transition word10; }
    state word10 { packet.extract(hdr.w10); transition word9; }
    state word9 { packet.extract(hdr.w9); transition word8; }
    state word8 { packet.extract(hdr.w8); transition word7; }
    state word7 { packet.extract(hdr.w7); transition word6; }
    state word6 { packet.extract(hdr.w6); transition word5; }
    state word5 { packet.extract(hdr.w5); transition word4; }
    state word4 { packet.extract(hdr.w4); transition word3; }
    state word3 { packet.extract(hdr.w3); transition word2; }
    state word2 { packet.extract(hdr.w2); transition word1; }
    state word1 { packet.extract(hdr.w1); transition word0; }
    state word0 { packet.extract(hdr.w0); transition accept; }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }

control Folding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(4096) nexts;   // turn of a cell that may open, or is open
    register<bit<32>>(8192) turns;
    register<bit<32>>(8192) shapes;
    register<bit<32>>(8192) contributors;
    register<bit<32>>(8192) v0;
    register<bit<32>>(8192) v1;
    register<bit<32>>(8192) v2;
    register<bit<32>>(8192) v3;
    register<bit<32>>(8192) v4;
    register<bit<32>>(8192) v5;
    register<bit<32>>(8192) v6;
    register<bit<32>>(8192) v7;
    register<bit<32>>(8192) v8;
    register<bit<32>>(8192) v9;
    register<bit<32>>(8192) v10;
    register<bit<32>>(8192) v11;
    register<bit<32>>(8192) v12;
    register<bit<32>>(8192) v13;
    register<bit<32>>(8192) v14;
    register<bit<32>>(8192) v15;
    register<bit<32>>(8192) v16;
    register<bit<32>>(8192) v17;
    register<bit<32>>(8192) v18;
    register<bit<32>>(8192) v19;
    register<bit<32>>(8192) v20;
    register<bit<32>>(8192) v21;
    register<bit<32>>(8192) v22;
    register<bit<32>>(8192) v23;
    counter(32, CounterType.packets) counted;
    // A contribution that no entry fits is the server's to judge: it passes.
    action member(bit<16> base, bit<16> beyond, bit<16> payload, bit<32> own, bit<32> others,
                  bit<32> all, bit<64> tag, bit<16> group) {
        meta.cell = base + hdr.frame.slot;
        meta.beyond = hdr.frame.slot & beyond;
        meta.excess = hdr.frame.length |-| payload;
        meta.own = own;
        meta.others = others;
        meta.all = all;
        meta.tag = tag;
        meta.group = group;
    }
    table members {
        key = {
            hdr.frame.epoch: exact; hdr.frame.boot: exact; hdr.frame.worker: exact;
            hdr.frame.world: exact; hdr.frame.count: exact; hdr.frame.contributors_high: exact;
            hdr.frame.contributors: exact; hdr.frame.tag: exact; hdr.ipv4.from: exact;
            hdr.udp.from: exact;
        }
        actions = { member; @defaultonly NoAction; }
        default_action = NoAction();
        size = 2048;
    }
    action operation(bit<3> mode) {
        meta.operation = mode;
        meta.key = hdr.frame.turn | 1;
        meta.shape = hdr.frame.op ++ 7w0 ++ hdr.frame.entry ++ hdr.frame.length;
        meta.bank = meta.cell ++ hdr.frame.turn[0:0];
    }
    table operations {
        key = { hdr.frame.op: exact; hdr.frame.length: ternary; }
        actions = { operation; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            (3, _): operation(SUM);        // sum_i32
            (5, _): operation(SUM);        // sum_u8, sum_u16: no lane overflows into the next
            (6, _): operation(SUM);
            (7, 0 &&& 7): operation(OR);   // or_u64, whole lanes only
            (8, _): operation(MAX);        // max_u32
        }
    }
    action refuse(bit<32> why) { meta.mode = NONE; meta.audience = NOBODY; counted.count(why); }
    action begin(bit<2> audience, bit<32> what) {
        meta.mode = BEGIN;
        meta.audience = audience;
        counted.count(what);
    }
    action combine(bit<2> audience, bit<32> what) {
        meta.mode = meta.operation;
        meta.audience = audience;
        counted.count(what);
    }
    // Adding nothing is how a register is read.
    action recall() {
        meta.mode = SUM;
        meta.audience = SENDER;
        hdr.w0.value = 0;
        hdr.w1.value = 0;
        hdr.w2.value = 0;
        hdr.w3.value = 0;
        hdr.w4.value = 0;
        hdr.w5.value = 0;
        hdr.w6.value = 0;
        hdr.w7.value = 0;
        hdr.w8.value = 0;
        hdr.w9.value = 0;
        hdr.w10.value = 0;
        hdr.w11.value = 0;
        hdr.w12.value = 0;
        hdr.w13.value = 0;
        hdr.w14.value = 0;
        hdr.w15.value = 0;
        hdr.w16.value = 0;
        hdr.w17.value = 0;
        hdr.w18.value = 0;
        hdr.w19.value = 0;
        hdr.w20.value = 0;
        hdr.w21.value = 0;
        hdr.w22.value = 0;
        hdr.w23.value = 0;
        counted.count(3);
    }
    table verdicts {
        key = { meta.opens: ternary; meta.known: ternary; meta.mine: ternary; meta.rest: ternary; }
        actions = { refuse; begin; combine; recall; }
        default_action = refuse(14);                         // turn
        const entries = {
            (1, 8, 0, 0): combine(EVERYONE, 2);
            (1, 8, 0, _): combine(NOBODY, 1);
            (1, 8, _, _): refuse(15);                        // duplicate
            (0, 8, _, _): recall();
            (_, 2, _, _): refuse(17);                        // mismatch
            (1, _, _, 0): begin(EVERYONE, 2);
            (1, _, _, _): begin(NOBODY, 1);
        }
    }
    // The frame becomes the result, and turns around.
    action reply() {
        hdr.frame.kind = 2;
        hdr.frame.resent = 0;
        hdr.frame.worker = 0xFF;
        hdr.frame.count = hdr.frame.world;
        hdr.frame.contributors = meta.all;
        hdr.frame.tag = meta.tag;
        bit<48> mac = hdr.ethernet.to;
        hdr.ethernet.to = hdr.ethernet.from;
        hdr.ethernet.from = mac;
        bit<32> address = hdr.ipv4.to;
        hdr.ipv4.to = hdr.ipv4.from;
        hdr.ipv4.from = address;
        bit<16> port = hdr.udp.to;
        hdr.udp.to = hdr.udp.from;
        hdr.udp.from = port;
        hdr.udp.checksum = 0;
    }
    // Everything that is not the switch's own goes on by its destination, to the server among others.
    action send(bit<9> port) { standard.egress_spec = port; }
    action flood(bit<16> group) { standard.mcast_grp = group; }
    action drop() { mark_to_drop(standard); }
    table forward {
        key = { hdr.ethernet.to: exact; }
        actions = { send; flood; drop; }
        default_action = drop();
        size = 1024;
    }

    apply {
        bool own = false;
        if (hdr.w0.isValid()) {
            if (members.apply().hit) {
                if (operations.apply().hit) { own = meta.beyond == 0 && meta.excess == 0; }
            }
        }
        if (own) {
            @atomic {
                bit<32> turn;
                bit<32> shape;
                nexts.read(turn, (bit<32>)meta.cell);
                meta.opens = turn == hdr.frame.turn ? 1w1 : 1w0;
                turns.read(turn, (bit<32>)meta.bank);
                shapes.read(shape, (bit<32>)meta.bank);
                if (turn == meta.key) {
                    meta.known = shape == meta.shape ? 4w8 : 4w2;
                } else {
                    meta.known = shape == meta.shape ? 4w4 : 4w1;
                    if (meta.opens == 1) {
                        turns.write((bit<32>)meta.bank, meta.key);
                        shapes.write((bit<32>)meta.bank, meta.shape);
                    }
                }
                if (meta.opens == 1 && meta.known == 8) {
                    contributors.read(meta.seen, (bit<32>)meta.bank);
                    contributors.write((bit<32>)meta.bank, meta.seen | meta.own);
                } else if (meta.opens == 1 && meta.known != 2) {
                    meta.seen = 0;
                    contributors.write((bit<32>)meta.bank, meta.own);
                }
                meta.mine = meta.seen & meta.own;
                meta.rest = meta.seen ^ meta.others;
                verdicts.apply();
                if (meta.mode != NONE) {
                    bit<32> sum;
                    if (hdr.w0.isValid()) {
                        v0.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w0.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w0.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w0.value; }
                        else if (sum < hdr.w0.value) { sum = hdr.w0.value; }
                        v0.write((bit<32>)meta.bank, sum);
                        hdr.w0.value = sum;
                    }
                    if (hdr.w1.isValid()) {
                        v1.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w1.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w1.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w1.value; }
                        else if (sum < hdr.w1.value) { sum = hdr.w1.value; }
                        v1.write((bit<32>)meta.bank, sum);
                        hdr.w1.value = sum;
                    }
                    if (hdr.w2.isValid()) {
                        v2.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w2.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w2.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w2.value; }
                        else if (sum < hdr.w2.value) { sum = hdr.w2.value; }
                        v2.write((bit<32>)meta.bank, sum);
                        hdr.w2.value = sum;
                    }
                    if (hdr.w3.isValid()) {
                        v3.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w3.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w3.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w3.value; }
                        else if (sum < hdr.w3.value) { sum = hdr.w3.value; }
                        v3.write((bit<32>)meta.bank, sum);
                        hdr.w3.value = sum;
                    }
                    if (hdr.w4.isValid()) {
                        v4.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w4.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w4.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w4.value; }
                        else if (sum < hdr.w4.value) { sum = hdr.w4.value; }
                        v4.write((bit<32>)meta.bank, sum);
                        hdr.w4.value = sum;
                    }
                    if (hdr.w5.isValid()) {
                        v5.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w5.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w5.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w5.value; }
                        else if (sum < hdr.w5.value) { sum = hdr.w5.value; }
                        v5.write((bit<32>)meta.bank, sum);
                        hdr.w5.value = sum;
                    }
                    if (hdr.w6.isValid()) {
                        v6.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w6.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w6.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w6.value; }
                        else if (sum < hdr.w6.value) { sum = hdr.w6.value; }
                        v6.write((bit<32>)meta.bank, sum);
                        hdr.w6.value = sum;
                    }
                    if (hdr.w7.isValid()) {
                        v7.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w7.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w7.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w7.value; }
                        else if (sum < hdr.w7.value) { sum = hdr.w7.value; }
                        v7.write((bit<32>)meta.bank, sum);
                        hdr.w7.value = sum;
                    }
                    if (hdr.w8.isValid()) {
                        v8.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w8.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w8.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w8.value; }
                        else if (sum < hdr.w8.value) { sum = hdr.w8.value; }
                        v8.write((bit<32>)meta.bank, sum);
                        hdr.w8.value = sum;
                    }
                    if (hdr.w9.isValid()) {
                        v9.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w9.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w9.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w9.value; }
                        else if (sum < hdr.w9.value) { sum = hdr.w9.value; }
                        v9.write((bit<32>)meta.bank, sum);
                        hdr.w9.value = sum;
                    }
                    if (hdr.w10.isValid()) {
                        v10.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w10.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w10.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w10.value; }
                        else if (sum < hdr.w10.value) { sum = hdr.w10.value; }
                        v10.write((bit<32>)meta.bank, sum);
                        hdr.w10.value = sum;
                    }
                    if (hdr.w11.isValid()) {
                        v11.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w11.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w11.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w11.value; }
                        else if (sum < hdr.w11.value) { sum = hdr.w11.value; }
                        v11.write((bit<32>)meta.bank, sum);
                        hdr.w11.value = sum;
                    }
                    if (hdr.w12.isValid()) {
                        v12.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w12.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w12.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w12.value; }
                        else if (sum < hdr.w12.value) { sum = hdr.w12.value; }
                        v12.write((bit<32>)meta.bank, sum);
                        hdr.w12.value = sum;
                    }
                    if (hdr.w13.isValid()) {
                        v13.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w13.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w13.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w13.value; }
                        else if (sum < hdr.w13.value) { sum = hdr.w13.value; }
                        v13.write((bit<32>)meta.bank, sum);
                        hdr.w13.value = sum;
                    }
                    if (hdr.w14.isValid()) {
                        v14.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w14.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w14.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w14.value; }
                        else if (sum < hdr.w14.value) { sum = hdr.w14.value; }
                        v14.write((bit<32>)meta.bank, sum);
                        hdr.w14.value = sum;
                    }
                    if (hdr.w15.isValid()) {
                        v15.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w15.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w15.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w15.value; }
                        else if (sum < hdr.w15.value) { sum = hdr.w15.value; }
                        v15.write((bit<32>)meta.bank, sum);
                        hdr.w15.value = sum;
                    }
                    if (hdr.w16.isValid()) {
                        v16.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w16.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w16.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w16.value; }
                        else if (sum < hdr.w16.value) { sum = hdr.w16.value; }
                        v16.write((bit<32>)meta.bank, sum);
                        hdr.w16.value = sum;
                    }
                    if (hdr.w17.isValid()) {
                        v17.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w17.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w17.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w17.value; }
                        else if (sum < hdr.w17.value) { sum = hdr.w17.value; }
                        v17.write((bit<32>)meta.bank, sum);
                        hdr.w17.value = sum;
                    }
                    if (hdr.w18.isValid()) {
                        v18.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w18.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w18.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w18.value; }
                        else if (sum < hdr.w18.value) { sum = hdr.w18.value; }
                        v18.write((bit<32>)meta.bank, sum);
                        hdr.w18.value = sum;
                    }
                    if (hdr.w19.isValid()) {
                        v19.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w19.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w19.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w19.value; }
                        else if (sum < hdr.w19.value) { sum = hdr.w19.value; }
                        v19.write((bit<32>)meta.bank, sum);
                        hdr.w19.value = sum;
                    }
                    if (hdr.w20.isValid()) {
                        v20.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w20.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w20.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w20.value; }
                        else if (sum < hdr.w20.value) { sum = hdr.w20.value; }
                        v20.write((bit<32>)meta.bank, sum);
                        hdr.w20.value = sum;
                    }
                    if (hdr.w21.isValid()) {
                        v21.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w21.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w21.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w21.value; }
                        else if (sum < hdr.w21.value) { sum = hdr.w21.value; }
                        v21.write((bit<32>)meta.bank, sum);
                        hdr.w21.value = sum;
                    }
                    if (hdr.w22.isValid()) {
                        v22.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w22.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w22.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w22.value; }
                        else if (sum < hdr.w22.value) { sum = hdr.w22.value; }
                        v22.write((bit<32>)meta.bank, sum);
                        hdr.w22.value = sum;
                    }
                    if (hdr.w23.isValid()) {
                        v23.read(sum, (bit<32>)meta.bank);
                        if (meta.mode == BEGIN) { sum = hdr.w23.value; }
                        else if (meta.mode == SUM) { sum = sum + hdr.w23.value; }
                        else if (meta.mode == OR) { sum = sum | hdr.w23.value; }
                        else if (sum < hdr.w23.value) { sum = hdr.w23.value; }
                        v23.write((bit<32>)meta.bank, sum);
                        hdr.w23.value = sum;
                    }
                }
                if (meta.audience == EVERYONE) {
                    nexts.write((bit<32>)meta.cell, hdr.frame.turn + 1);
                }
            }
            if (meta.audience == NOBODY) {
                mark_to_drop(standard);
            } else {
                reply();
                if (meta.audience == SENDER) { standard.egress_spec = standard.ingress_port; }
                else { standard.mcast_grp = meta.group; }
            }
        } else {
            forward.apply();
        }
    }
}

control Addressing(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action receiver(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.to = mac;
        hdr.ipv4.to = address;
        hdr.udp.to = port;
    }
    table receivers {
        key = { hdr.frame.epoch: exact; standard.egress_rid: exact; }
        actions = { receiver; @defaultonly NoAction; }
        default_action = NoAction();
        size = 2048;
    }

    apply {
        if (standard.egress_rid != 0 && hdr.frame.isValid()) {
            receivers.apply();
        } else if (standard.egress_rid != 0 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);   // a flood does not come back
        }
    }
}

control Checksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.words == 5, { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.length, hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.whole, hdr.ipv4.more, hdr.ipv4.offset, hdr.ipv4.hops, hdr.ipv4.protocol, hdr.ipv4.from, hdr.ipv4.to },
                        hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FrameDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.frame);
        packet.emit(hdr.w23);
        packet.emit(hdr.w22);
        packet.emit(hdr.w21);
        packet.emit(hdr.w20);
        packet.emit(hdr.w19);
        packet.emit(hdr.w18);
        packet.emit(hdr.w17);
        packet.emit(hdr.w16);
        packet.emit(hdr.w15);
        packet.emit(hdr.w14);
        packet.emit(hdr.w13);
        packet.emit(hdr.w12);
        packet.emit(hdr.w11);
        packet.emit(hdr.w10);
        packet.emit(hdr.w9);
        packet.emit(hdr.w8);
        packet.emit(hdr.w7);
        packet.emit(hdr.w6);
        packet.emit(hdr.w5);
        packet.emit(hdr.w4);
        packet.emit(hdr.w3);
        packet.emit(hdr.w2);
        packet.emit(hdr.w1);
        packet.emit(hdr.w0);
    }
}

V1Switch(FrameParser(), Verify(), Folding(), Addressing(), Checksums(), FrameDeparser()) main;
