// SPDX-License-Identifier: Apache-2.0
// The timeline of a step: buckets go through lanes in their order, each lane has one bucket at a
// time, and backward goes on meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>

namespace addend::control {

/// Seconds of one bucket in each lane, from when its gradient is there.
struct Stages {
  double ready_s = 0;
  double encode_s = 0, network_s = 0, add_s = 0, decode_s = 0;
};

/// When the last bucket is decoded. `stages_of` is called once for each bucket, in their order.
template <typename StagesOf>
double end_of_lanes(uint64_t buckets, const StagesOf& stages_of) {
  double encoder = 0, network = 0, adder = 0, decoder = 0;
  for (uint64_t b = 0; b < buckets; ++b) {
    const Stages one = stages_of(b);
    encoder = std::max(encoder, one.ready_s) + one.encode_s;
    network = std::max(network, encoder) + one.network_s;
    adder = std::max(adder, network) + one.add_s;
    decoder = std::max(decoder, adder) + one.decode_s;
  }
  return decoder;
}

}  // namespace addend::control
