// SPDX-License-Identifier: Apache-2.0
// Made by generate.py tna --words 24 --cells 4096: change that one.
#include <core.p4>
#include <tna.p4>
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

struct bank_t { bit<32> turn; bit<32> shape; }
const PortId_t RECIRCULATION = 68;

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        transition select(intrinsic.ingress_port) { RECIRCULATION: again; default: ethernet; }
    }
    state again { packet.extract(hdr.again); transition ethernet; }
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

control Folding(inout headers_t hdr, inout metadata_t meta,
                in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t parsed,
                inout ingress_intrinsic_metadata_for_deparser_t deparsed,
                inout ingress_intrinsic_metadata_for_tm_t manager) {
    Register<bit<32>, bit<16>>(4096) nexts;   // turn of a cell that may open, or is open
    RegisterAction<bit<32>, bit<16>, bit<1>>(nexts) is_next = {
        void apply(inout bit<32> next, out bit<1> result) {
            if (next == hdr.frame.turn) { result = 1; } else { result = 0; }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<1>>(nexts) go_on = {
        void apply(inout bit<32> next) { next = hdr.frame.turn + 1; }
    };
    Register<bank_t, bit<17>>(8192) turns;
    RegisterAction<bank_t, bit<17>, bit<4>>(turns) open = {
        void apply(inout bank_t bank, out bit<4> result) {
            bool same = bank.turn == meta.key;
            bool alike = bank.shape == meta.shape;
            result = this.predicate(same, alike);
            if (!same) { bank.turn = meta.key; bank.shape = meta.shape; }
        }
    };
    RegisterAction<bank_t, bit<17>, bit<4>>(turns) look = {
        void apply(inout bank_t bank, out bit<4> result) {
            bool same = bank.turn == meta.key;
            bool alike = bank.shape == meta.shape;
            result = this.predicate(same, alike);
        }
    };
    Register<bit<32>, bit<17>>(8192) contributors;
    RegisterAction<bit<32>, bit<17>, bit<32>>(contributors) first = {
        void apply(inout bit<32> seen, out bit<32> before) { before = 0; seen = meta.own; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(contributors) also = {
        void apply(inout bit<32> seen, out bit<32> before) {
            before = seen;
            seen = seen | meta.own;
        }
    };
    Register<bit<32>, bit<17>>(8192) v0;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v0) begin_0 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w0.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v0) sum_0 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w0.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v0) or_0 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w0.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v0) max_0 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w0.value); now = sum; }
    };
    action do_begin_0() { hdr.w0.value = begin_0.execute(meta.bank); }
    action do_sum_0() { hdr.w0.value = sum_0.execute(meta.bank); }
    action do_or_0() { hdr.w0.value = or_0.execute(meta.bank); }
    action do_max_0() { hdr.w0.value = max_0.execute(meta.bank); }
    table word_0 {
        key = { meta.mode: exact; }
        actions = { do_begin_0; do_sum_0; do_or_0; do_max_0; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_0(); SUM: do_sum_0(); OR: do_or_0(); MAX: do_max_0();
        }
    }
    Register<bit<32>, bit<17>>(8192) v1;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v1) begin_1 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w1.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v1) sum_1 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w1.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v1) or_1 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w1.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v1) max_1 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w1.value); now = sum; }
    };
    action do_begin_1() { hdr.w1.value = begin_1.execute(meta.bank); }
    action do_sum_1() { hdr.w1.value = sum_1.execute(meta.bank); }
    action do_or_1() { hdr.w1.value = or_1.execute(meta.bank); }
    action do_max_1() { hdr.w1.value = max_1.execute(meta.bank); }
    table word_1 {
        key = { meta.mode: exact; }
        actions = { do_begin_1; do_sum_1; do_or_1; do_max_1; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_1(); SUM: do_sum_1(); OR: do_or_1(); MAX: do_max_1();
        }
    }
    Register<bit<32>, bit<17>>(8192) v2;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v2) begin_2 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w2.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v2) sum_2 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w2.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v2) or_2 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w2.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v2) max_2 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w2.value); now = sum; }
    };
    action do_begin_2() { hdr.w2.value = begin_2.execute(meta.bank); }
    action do_sum_2() { hdr.w2.value = sum_2.execute(meta.bank); }
    action do_or_2() { hdr.w2.value = or_2.execute(meta.bank); }
    action do_max_2() { hdr.w2.value = max_2.execute(meta.bank); }
    table word_2 {
        key = { meta.mode: exact; }
        actions = { do_begin_2; do_sum_2; do_or_2; do_max_2; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_2(); SUM: do_sum_2(); OR: do_or_2(); MAX: do_max_2();
        }
    }
    Register<bit<32>, bit<17>>(8192) v3;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v3) begin_3 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w3.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v3) sum_3 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w3.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v3) or_3 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w3.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v3) max_3 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w3.value); now = sum; }
    };
    action do_begin_3() { hdr.w3.value = begin_3.execute(meta.bank); }
    action do_sum_3() { hdr.w3.value = sum_3.execute(meta.bank); }
    action do_or_3() { hdr.w3.value = or_3.execute(meta.bank); }
    action do_max_3() { hdr.w3.value = max_3.execute(meta.bank); }
    table word_3 {
        key = { meta.mode: exact; }
        actions = { do_begin_3; do_sum_3; do_or_3; do_max_3; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_3(); SUM: do_sum_3(); OR: do_or_3(); MAX: do_max_3();
        }
    }
    Register<bit<32>, bit<17>>(8192) v4;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v4) begin_4 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w4.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v4) sum_4 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w4.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v4) or_4 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w4.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v4) max_4 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w4.value); now = sum; }
    };
    action do_begin_4() { hdr.w4.value = begin_4.execute(meta.bank); }
    action do_sum_4() { hdr.w4.value = sum_4.execute(meta.bank); }
    action do_or_4() { hdr.w4.value = or_4.execute(meta.bank); }
    action do_max_4() { hdr.w4.value = max_4.execute(meta.bank); }
    table word_4 {
        key = { meta.mode: exact; }
        actions = { do_begin_4; do_sum_4; do_or_4; do_max_4; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_4(); SUM: do_sum_4(); OR: do_or_4(); MAX: do_max_4();
        }
    }
    Register<bit<32>, bit<17>>(8192) v5;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v5) begin_5 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w5.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v5) sum_5 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w5.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v5) or_5 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w5.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v5) max_5 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w5.value); now = sum; }
    };
    action do_begin_5() { hdr.w5.value = begin_5.execute(meta.bank); }
    action do_sum_5() { hdr.w5.value = sum_5.execute(meta.bank); }
    action do_or_5() { hdr.w5.value = or_5.execute(meta.bank); }
    action do_max_5() { hdr.w5.value = max_5.execute(meta.bank); }
    table word_5 {
        key = { meta.mode: exact; }
        actions = { do_begin_5; do_sum_5; do_or_5; do_max_5; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_5(); SUM: do_sum_5(); OR: do_or_5(); MAX: do_max_5();
        }
    }
    Register<bit<32>, bit<17>>(8192) v6;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v6) begin_6 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w6.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v6) sum_6 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w6.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v6) or_6 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w6.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v6) max_6 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w6.value); now = sum; }
    };
    action do_begin_6() { hdr.w6.value = begin_6.execute(meta.bank); }
    action do_sum_6() { hdr.w6.value = sum_6.execute(meta.bank); }
    action do_or_6() { hdr.w6.value = or_6.execute(meta.bank); }
    action do_max_6() { hdr.w6.value = max_6.execute(meta.bank); }
    table word_6 {
        key = { meta.mode: exact; }
        actions = { do_begin_6; do_sum_6; do_or_6; do_max_6; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_6(); SUM: do_sum_6(); OR: do_or_6(); MAX: do_max_6();
        }
    }
    Register<bit<32>, bit<17>>(8192) v7;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v7) begin_7 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w7.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v7) sum_7 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w7.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v7) or_7 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w7.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v7) max_7 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w7.value); now = sum; }
    };
    action do_begin_7() { hdr.w7.value = begin_7.execute(meta.bank); }
    action do_sum_7() { hdr.w7.value = sum_7.execute(meta.bank); }
    action do_or_7() { hdr.w7.value = or_7.execute(meta.bank); }
    action do_max_7() { hdr.w7.value = max_7.execute(meta.bank); }
    table word_7 {
        key = { meta.mode: exact; }
        actions = { do_begin_7; do_sum_7; do_or_7; do_max_7; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_7(); SUM: do_sum_7(); OR: do_or_7(); MAX: do_max_7();
        }
    }
    Register<bit<32>, bit<17>>(8192) v8;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v8) begin_8 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w8.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v8) sum_8 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w8.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v8) or_8 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w8.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v8) max_8 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w8.value); now = sum; }
    };
    action do_begin_8() { hdr.w8.value = begin_8.execute(meta.bank); }
    action do_sum_8() { hdr.w8.value = sum_8.execute(meta.bank); }
    action do_or_8() { hdr.w8.value = or_8.execute(meta.bank); }
    action do_max_8() { hdr.w8.value = max_8.execute(meta.bank); }
    table word_8 {
        key = { meta.mode: exact; }
        actions = { do_begin_8; do_sum_8; do_or_8; do_max_8; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_8(); SUM: do_sum_8(); OR: do_or_8(); MAX: do_max_8();
        }
    }
    Register<bit<32>, bit<17>>(8192) v9;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v9) begin_9 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w9.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v9) sum_9 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w9.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v9) or_9 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w9.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v9) max_9 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w9.value); now = sum; }
    };
    action do_begin_9() { hdr.w9.value = begin_9.execute(meta.bank); }
    action do_sum_9() { hdr.w9.value = sum_9.execute(meta.bank); }
    action do_or_9() { hdr.w9.value = or_9.execute(meta.bank); }
    action do_max_9() { hdr.w9.value = max_9.execute(meta.bank); }
    table word_9 {
        key = { meta.mode: exact; }
        actions = { do_begin_9; do_sum_9; do_or_9; do_max_9; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_9(); SUM: do_sum_9(); OR: do_or_9(); MAX: do_max_9();
        }
    }
    Register<bit<32>, bit<17>>(8192) v10;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v10) begin_10 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w10.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v10) sum_10 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w10.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v10) or_10 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w10.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v10) max_10 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w10.value); now = sum; }
    };
    action do_begin_10() { hdr.w10.value = begin_10.execute(meta.bank); }
    action do_sum_10() { hdr.w10.value = sum_10.execute(meta.bank); }
    action do_or_10() { hdr.w10.value = or_10.execute(meta.bank); }
    action do_max_10() { hdr.w10.value = max_10.execute(meta.bank); }
    table word_10 {
        key = { meta.mode: exact; }
        actions = { do_begin_10; do_sum_10; do_or_10; do_max_10; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_10(); SUM: do_sum_10(); OR: do_or_10(); MAX: do_max_10();
        }
    }
    Register<bit<32>, bit<17>>(8192) v11;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v11) begin_11 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w11.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v11) sum_11 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w11.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v11) or_11 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w11.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v11) max_11 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w11.value); now = sum; }
    };
    action do_begin_11() { hdr.w11.value = begin_11.execute(meta.bank); }
    action do_sum_11() { hdr.w11.value = sum_11.execute(meta.bank); }
    action do_or_11() { hdr.w11.value = or_11.execute(meta.bank); }
    action do_max_11() { hdr.w11.value = max_11.execute(meta.bank); }
    table word_11 {
        key = { meta.mode: exact; }
        actions = { do_begin_11; do_sum_11; do_or_11; do_max_11; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_11(); SUM: do_sum_11(); OR: do_or_11(); MAX: do_max_11();
        }
    }
    Register<bit<32>, bit<17>>(8192) v12;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v12) begin_12 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w12.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v12) sum_12 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w12.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v12) or_12 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w12.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v12) max_12 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w12.value); now = sum; }
    };
    action do_begin_12() { hdr.w12.value = begin_12.execute(meta.bank); }
    action do_sum_12() { hdr.w12.value = sum_12.execute(meta.bank); }
    action do_or_12() { hdr.w12.value = or_12.execute(meta.bank); }
    action do_max_12() { hdr.w12.value = max_12.execute(meta.bank); }
    table word_12 {
        key = { meta.mode: exact; }
        actions = { do_begin_12; do_sum_12; do_or_12; do_max_12; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_12(); SUM: do_sum_12(); OR: do_or_12(); MAX: do_max_12();
        }
    }
    Register<bit<32>, bit<17>>(8192) v13;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v13) begin_13 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w13.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v13) sum_13 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w13.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v13) or_13 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w13.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v13) max_13 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w13.value); now = sum; }
    };
    action do_begin_13() { hdr.w13.value = begin_13.execute(meta.bank); }
    action do_sum_13() { hdr.w13.value = sum_13.execute(meta.bank); }
    action do_or_13() { hdr.w13.value = or_13.execute(meta.bank); }
    action do_max_13() { hdr.w13.value = max_13.execute(meta.bank); }
    table word_13 {
        key = { meta.mode: exact; }
        actions = { do_begin_13; do_sum_13; do_or_13; do_max_13; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_13(); SUM: do_sum_13(); OR: do_or_13(); MAX: do_max_13();
        }
    }
    Register<bit<32>, bit<17>>(8192) v14;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v14) begin_14 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w14.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v14) sum_14 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w14.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v14) or_14 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w14.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v14) max_14 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w14.value); now = sum; }
    };
    action do_begin_14() { hdr.w14.value = begin_14.execute(meta.bank); }
    action do_sum_14() { hdr.w14.value = sum_14.execute(meta.bank); }
    action do_or_14() { hdr.w14.value = or_14.execute(meta.bank); }
    action do_max_14() { hdr.w14.value = max_14.execute(meta.bank); }
    table word_14 {
        key = { meta.mode: exact; }
        actions = { do_begin_14; do_sum_14; do_or_14; do_max_14; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_14(); SUM: do_sum_14(); OR: do_or_14(); MAX: do_max_14();
        }
    }
    Register<bit<32>, bit<17>>(8192) v15;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v15) begin_15 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w15.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v15) sum_15 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w15.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v15) or_15 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w15.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v15) max_15 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w15.value); now = sum; }
    };
    action do_begin_15() { hdr.w15.value = begin_15.execute(meta.bank); }
    action do_sum_15() { hdr.w15.value = sum_15.execute(meta.bank); }
    action do_or_15() { hdr.w15.value = or_15.execute(meta.bank); }
    action do_max_15() { hdr.w15.value = max_15.execute(meta.bank); }
    table word_15 {
        key = { meta.mode: exact; }
        actions = { do_begin_15; do_sum_15; do_or_15; do_max_15; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_15(); SUM: do_sum_15(); OR: do_or_15(); MAX: do_max_15();
        }
    }
    Register<bit<32>, bit<17>>(8192) v16;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v16) begin_16 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w16.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v16) sum_16 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w16.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v16) or_16 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w16.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v16) max_16 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w16.value); now = sum; }
    };
    action do_begin_16() { hdr.w16.value = begin_16.execute(meta.bank); }
    action do_sum_16() { hdr.w16.value = sum_16.execute(meta.bank); }
    action do_or_16() { hdr.w16.value = or_16.execute(meta.bank); }
    action do_max_16() { hdr.w16.value = max_16.execute(meta.bank); }
    table word_16 {
        key = { meta.mode: exact; }
        actions = { do_begin_16; do_sum_16; do_or_16; do_max_16; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_16(); SUM: do_sum_16(); OR: do_or_16(); MAX: do_max_16();
        }
    }
    Register<bit<32>, bit<17>>(8192) v17;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v17) begin_17 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w17.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v17) sum_17 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w17.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v17) or_17 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w17.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v17) max_17 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w17.value); now = sum; }
    };
    action do_begin_17() { hdr.w17.value = begin_17.execute(meta.bank); }
    action do_sum_17() { hdr.w17.value = sum_17.execute(meta.bank); }
    action do_or_17() { hdr.w17.value = or_17.execute(meta.bank); }
    action do_max_17() { hdr.w17.value = max_17.execute(meta.bank); }
    table word_17 {
        key = { meta.mode: exact; }
        actions = { do_begin_17; do_sum_17; do_or_17; do_max_17; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_17(); SUM: do_sum_17(); OR: do_or_17(); MAX: do_max_17();
        }
    }
    Register<bit<32>, bit<17>>(8192) v18;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v18) begin_18 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w18.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v18) sum_18 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w18.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v18) or_18 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w18.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v18) max_18 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w18.value); now = sum; }
    };
    action do_begin_18() { hdr.w18.value = begin_18.execute(meta.bank); }
    action do_sum_18() { hdr.w18.value = sum_18.execute(meta.bank); }
    action do_or_18() { hdr.w18.value = or_18.execute(meta.bank); }
    action do_max_18() { hdr.w18.value = max_18.execute(meta.bank); }
    table word_18 {
        key = { meta.mode: exact; }
        actions = { do_begin_18; do_sum_18; do_or_18; do_max_18; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_18(); SUM: do_sum_18(); OR: do_or_18(); MAX: do_max_18();
        }
    }
    Register<bit<32>, bit<17>>(8192) v19;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v19) begin_19 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w19.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v19) sum_19 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w19.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v19) or_19 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w19.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v19) max_19 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w19.value); now = sum; }
    };
    action do_begin_19() { hdr.w19.value = begin_19.execute(meta.bank); }
    action do_sum_19() { hdr.w19.value = sum_19.execute(meta.bank); }
    action do_or_19() { hdr.w19.value = or_19.execute(meta.bank); }
    action do_max_19() { hdr.w19.value = max_19.execute(meta.bank); }
    table word_19 {
        key = { meta.mode: exact; }
        actions = { do_begin_19; do_sum_19; do_or_19; do_max_19; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_19(); SUM: do_sum_19(); OR: do_or_19(); MAX: do_max_19();
        }
    }
    Register<bit<32>, bit<17>>(8192) v20;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v20) begin_20 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w20.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v20) sum_20 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w20.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v20) or_20 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w20.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v20) max_20 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w20.value); now = sum; }
    };
    action do_begin_20() { hdr.w20.value = begin_20.execute(meta.bank); }
    action do_sum_20() { hdr.w20.value = sum_20.execute(meta.bank); }
    action do_or_20() { hdr.w20.value = or_20.execute(meta.bank); }
    action do_max_20() { hdr.w20.value = max_20.execute(meta.bank); }
    table word_20 {
        key = { meta.mode: exact; }
        actions = { do_begin_20; do_sum_20; do_or_20; do_max_20; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_20(); SUM: do_sum_20(); OR: do_or_20(); MAX: do_max_20();
        }
    }
    Register<bit<32>, bit<17>>(8192) v21;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v21) begin_21 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w21.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v21) sum_21 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w21.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v21) or_21 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w21.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v21) max_21 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w21.value); now = sum; }
    };
    action do_begin_21() { hdr.w21.value = begin_21.execute(meta.bank); }
    action do_sum_21() { hdr.w21.value = sum_21.execute(meta.bank); }
    action do_or_21() { hdr.w21.value = or_21.execute(meta.bank); }
    action do_max_21() { hdr.w21.value = max_21.execute(meta.bank); }
    table word_21 {
        key = { meta.mode: exact; }
        actions = { do_begin_21; do_sum_21; do_or_21; do_max_21; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_21(); SUM: do_sum_21(); OR: do_or_21(); MAX: do_max_21();
        }
    }
    Register<bit<32>, bit<17>>(8192) v22;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v22) begin_22 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w22.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v22) sum_22 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w22.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v22) or_22 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w22.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v22) max_22 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w22.value); now = sum; }
    };
    action do_begin_22() { hdr.w22.value = begin_22.execute(meta.bank); }
    action do_sum_22() { hdr.w22.value = sum_22.execute(meta.bank); }
    action do_or_22() { hdr.w22.value = or_22.execute(meta.bank); }
    action do_max_22() { hdr.w22.value = max_22.execute(meta.bank); }
    table word_22 {
        key = { meta.mode: exact; }
        actions = { do_begin_22; do_sum_22; do_or_22; do_max_22; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_22(); SUM: do_sum_22(); OR: do_or_22(); MAX: do_max_22();
        }
    }
    Register<bit<32>, bit<17>>(8192) v23;
    RegisterAction<bit<32>, bit<17>, bit<32>>(v23) begin_23 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = hdr.w23.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v23) sum_23 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum + hdr.w23.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v23) or_23 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = sum | hdr.w23.value; now = sum; }
    };
    RegisterAction<bit<32>, bit<17>, bit<32>>(v23) max_23 = {
        void apply(inout bit<32> sum, out bit<32> now) { sum = max(sum, hdr.w23.value); now = sum; }
    };
    action do_begin_23() { hdr.w23.value = begin_23.execute(meta.bank); }
    action do_sum_23() { hdr.w23.value = sum_23.execute(meta.bank); }
    action do_or_23() { hdr.w23.value = or_23.execute(meta.bank); }
    action do_max_23() { hdr.w23.value = max_23.execute(meta.bank); }
    table word_23 {
        key = { meta.mode: exact; }
        actions = { do_begin_23; do_sum_23; do_or_23; do_max_23; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = {
            BEGIN: do_begin_23(); SUM: do_sum_23(); OR: do_or_23(); MAX: do_max_23();
        }
    }
    Counter<bit<32>, bit<32>>(32, CounterType_t.PACKETS) counted;
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
    action send(bit<9> port) { manager.ucast_egress_port = port; }
    action flood(bit<16> group) { manager.mcast_grp_a = group; }
    action drop() { deparsed.drop_ctl = 1; }
    table forward {
        key = { hdr.ethernet.to: exact; }
        actions = { send; flood; drop; }
        default_action = drop();
        size = 1024;
    }

    action enlist_first() { meta.seen = first.execute(meta.bank); }
    action enlist() { meta.seen = also.execute(meta.bank); }
    table contributions {
        key = { meta.opens: exact; meta.known: exact; }
        actions = { enlist_first; enlist; @defaultonly NoAction; }
        default_action = NoAction();
        const entries = { (1, 1): enlist_first(); (1, 4): enlist_first(); (1, 8): enlist(); }
    }
    apply {
        if (hdr.again.isValid()) {
            // The second time: from now on the next turn may open, and everybody may know.
            go_on.execute(hdr.again.cell);
            manager.mcast_grp_a = hdr.again.group;
            hdr.again.setInvalid();
        } else {
            bool own = false;
            if (hdr.w0.isValid()) {
                if (members.apply().hit) {
                    if (operations.apply().hit) {
                        if (meta.beyond == 0 && meta.excess == 0) { own = true; }
                    }
                }
            }
            if (own) {
                meta.opens = is_next.execute(meta.cell);
                if (meta.opens == 1) { meta.known = open.execute(meta.bank); }
                else { meta.known = look.execute(meta.bank); }
                contributions.apply();
                meta.mine = meta.seen & meta.own;
                meta.rest = meta.seen ^ meta.others;
                verdicts.apply();
                word_0.apply();
                word_1.apply();
                word_2.apply();
                word_3.apply();
                word_4.apply();
                word_5.apply();
                word_6.apply();
                word_7.apply();
                word_8.apply();
                word_9.apply();
                word_10.apply();
                word_11.apply();
                word_12.apply();
                word_13.apply();
                word_14.apply();
                word_15.apply();
                word_16.apply();
                word_17.apply();
                word_18.apply();
                word_19.apply();
                word_20.apply();
                word_21.apply();
                word_22.apply();
                word_23.apply();
                if (meta.audience == NOBODY) {
                    deparsed.drop_ctl = 1;
                } else {
                    reply();
                    if (meta.audience == SENDER) {
                        manager.ucast_egress_port = intrinsic.ingress_port;
                    } else {
                        hdr.again.setValid();
                        hdr.again.cell = meta.cell;
                        hdr.again.group = meta.group;
                        manager.ucast_egress_port = RECIRCULATION;
                    }
                }
            } else {
                forward.apply();
            }
        }
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t deparsed) {
    apply {
        packet.emit(hdr.again);
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

parser EgressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        transition select(intrinsic.egress_port) { RECIRCULATION: accept; default: ethernet; }
    }
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

control Addressing(inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t parsed,
               inout egress_intrinsic_metadata_for_deparser_t deparsed,
               inout egress_intrinsic_metadata_for_output_port_t output) {
    action receiver(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.to = mac;
        hdr.ipv4.to = address;
        hdr.udp.to = port;
    }
    table receivers {
        key = { hdr.frame.epoch: exact; intrinsic.egress_rid: exact; }
        actions = { receiver; @defaultonly NoAction; }
        default_action = NoAction();
        size = 2048;
    }

    apply {
        if (intrinsic.egress_rid != 0 && hdr.frame.isValid()) { receivers.apply(); }
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t deparsed) {
    Checksum() checksum;
    apply {
        if (hdr.ipv4.isValid()) { hdr.ipv4.checksum = checksum.update({ hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.length, hdr.ipv4.identification, hdr.ipv4.reserved, hdr.ipv4.whole, hdr.ipv4.more, hdr.ipv4.offset, hdr.ipv4.hops, hdr.ipv4.protocol, hdr.ipv4.from, hdr.ipv4.to }); }
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

Pipeline(IngressParser(), Folding(), IngressDeparser(), EgressParser(), Addressing(), EgressDeparser())
    pipe;
Switch(pipe) main;
