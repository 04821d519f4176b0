// SPDX-License-Identifier: Apache-2.0
// The timeline of a step: buckets go through lanes in their order, each lane has one bucket at a
// time, and backward goes on meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace addend::control {

/// Seconds of one bucket in each lane, from when its gradient is there.
struct Stages {
  double ready_s = 0;
  double encode_s = 0, network_s = 0, add_s = 0, decode_s = 0;
};

/// When the last bucket is decoded. `stages_of` is called for each bucket, in their order.
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

/// The same where a worker has one core: backward pass, encoding, adding and decoding take turns on
/// it, and what is decoded waits for the backward pass to end.
template <typename StagesOf>
double end_of_turns(uint64_t buckets, const StagesOf& stages_of) {
  double core = 0, ready = 0, network = 0;
  std::vector<double> arrived(buckets);
  for (uint64_t b = 0; b < buckets; ++b) {
    const Stages one = stages_of(b);
    core += std::max(0.0, one.ready_s - ready) + one.encode_s;
    ready = std::max(ready, one.ready_s);
    network = std::max(network, core) + one.network_s;
    arrived[b] = network;
  }
  for (uint64_t b = 0; b < buckets; ++b) {
    const Stages one = stages_of(b);
    core = std::max(core, arrived[b]) + one.add_s + one.decode_s;
  }
  return core;
}

}  // namespace addend::control
