// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/own.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/bits.h"
#include "codec/convert.h"
#include "codec/index/ahead.h"
#include "wire/element.h"

namespace addend::exact {
namespace {

constexpr uint64_t kHeaderLanes = 2;
constexpr uint32_t kDigitBits = 7;

// Calls visit(begin, length) for the runs of set bits, ascending.
template <typename Visit>
void for_each_bit_run(const uint64_t* bitmap, uint64_t words, Visit&& visit) {
  constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t begin = kNone;
  for (uint64_t w = 0; w < words; ++w) {
    uint64_t bit = 0;
    while (bit < 64) {
      const uint64_t rest = bitmap[w] >> bit;
      if (begin == kNone) {
        if (rest == 0) break;
        bit += static_cast<uint64_t>(std::countr_zero(rest));
        begin = w * 64 + bit;
      } else {
        bit += static_cast<uint64_t>(std::countr_one(rest));
        if (bit >= 64) break;
        visit(begin, w * 64 + bit - begin);
        begin = kNone;
      }
    }
  }
  if (begin != kNone) visit(begin, words * 64 - begin);
}

// Calls put(number) for the numbers of an index: the zeros before each run, times two, plus one if
// the run is longer than one; then, if it is, its length less two.
template <typename Put>
void for_each_number(const NonZeros& own, Put&& put) {
  uint64_t end = 0;
  for_each_bit_run(own.bitmap, words_for(own.count), [&](uint64_t begin, uint64_t length) {
    put((begin - end) << 1 | (length > 1 ? 1 : 0));
    if (length > 1) put(length - 2);
    end = begin + length;
  });
}

uint64_t index_bytes(const NonZeros& own) {
  uint64_t bytes = 0;
  for_each_number(own, [&](uint64_t number) {
    bytes += ceil_div(static_cast<uint64_t>(std::bit_width(number | 1)), kDigitBits);
  });
  return bytes;
}

// Reads one number; false where there is none.
bool take(const uint8_t*& at, const uint8_t* end, uint64_t& number) {
  number = 0;
  for (uint32_t shift = 0; at != end && shift < 63; shift += kDigitBits) {
    const uint8_t byte = *at++;
    number |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

}  // namespace

Error no_message() {
  return make_error(Errc::kUndecodable,
                    "what came from a worker is no list of non-zeros: an adder altered it");
}

Result<uint64_t> bound_messages(std::span<const uint64_t> sizes, const Layout& layout, uint64_t own,
                                std::vector<uint64_t>& bounds) {
  // No message is longer: an index has at most a byte an element, and one more.
  const uint64_t most = 4 + layout.count;
  uint64_t longest = 0;
  bounds.assign(1, 0);
  for (uint32_t w = 0; w < layout.world; ++w) {
    if (sizes[w] > most || (w == layout.worker && sizes[w] != own)) {
      return make_error(Errc::kUndecodable, "the sum says that worker " + std::to_string(w) +
                                                " has a message of " + std::to_string(sizes[w]) +
                                                " lanes");
    }
    bounds.push_back(bounds.back() + sizes[w]);
    longest = std::max(longest, sizes[w]);
  }
  return longest;
}

uint64_t own_lanes(const NonZeros& own, uint64_t nonzeros, uint32_t width) {
  if (nonzeros == 0) return 0;
  return kHeaderLanes + ceil_div(index_bytes(own), 8) + ceil_div(nonzeros * width, 8);
}

void write_own(const NonZeros& own, uint64_t nonzeros, DType dtype, float scale, uint64_t* lanes) {
  if (nonzeros == 0) return;
  auto* index = reinterpret_cast<uint8_t*>(lanes + kHeaderLanes);
  uint8_t* at = index;
  for_each_number(own, [&](uint64_t number) {
    for (; number >= 0x80; number >>= kDigitBits)
      *at++ = static_cast<uint8_t>(number | 0x80);
    *at++ = static_cast<uint8_t>(number);
  });
  lanes[0] = nonzeros;
  lanes[1] = static_cast<uint64_t>(at - index);
  multiply(dtype, own.values, nonzeros, scale, lanes + kHeaderLanes + ceil_div(lanes[1], 8));
}

template <typename Visit>
bool OwnMessage::for_each_run(Visit&& visit) const {
  const uint8_t* at = index_;
  const uint8_t* end = index_ + index_bytes_;
  uint64_t position = 0;
  while (at != end) {
    uint64_t gap = 0, longer = 0;
    if (!take(at, end, gap)) return false;
    const bool several = (gap & 1) != 0;
    if (several && !take(at, end, longer)) return false;
    position += gap >> 1;
    const uint64_t length = several ? longer + 2 : 1;
    if (!visit(position, length)) return false;
    position += length;
  }
  return true;
}

Result<OwnMessage> OwnMessage::read(const uint64_t* lanes, uint64_t size, uint64_t count,
                                    DType dtype) {
  OwnMessage message;
  message.dtype_ = dtype;
  if (size == 0) return message;
  if (size < kHeaderLanes || lanes[0] > count || lanes[1] > (size - kHeaderLanes) * 8)
    return no_message();
  message.nonzeros_ = lanes[0];
  message.index_bytes_ = lanes[1];
  const uint64_t values = kHeaderLanes + ceil_div(lanes[1], 8);
  if (size != values + ceil_div(lanes[0] * dtype_bytes(dtype), 8)) return no_message();
  message.index_ = reinterpret_cast<const uint8_t*>(lanes + kHeaderLanes);
  message.values_ = lanes + values;
  uint64_t total = 0;
  const bool whole = message.for_each_run([&](uint64_t begin, uint64_t length) {
    total += length;
    return begin < count && length <= count - begin;
  });
  if (!whole || total != message.nonzeros_) return no_message();
  return message;
}

void OwnMessage::mark(uint64_t* bitmap) const {
  for_each_run([&](uint64_t begin, uint64_t length) {
    for_each_piece(begin, begin + length,
                   [&](uint64_t at, uint64_t bits) { or_bits(bitmap, at, bits, low_mask(bits)); });
    return true;
  });
}

void OwnMessage::add_to(void* gradient) const {
  struct Run {
    uint64_t begin, length;
  };
  uint64_t rank = 0;
  const auto add = [&](const Run& run) {
    if (dtype_ == DType::kF32) {
      float* sums = static_cast<float*>(gradient) + run.begin;
      const float* values = static_cast<const float*>(values_) + rank;
      for (uint64_t i = 0; i < run.length; ++i)
        sums[i] += values[i];
    } else {
      for (uint64_t i = 0; i < run.length; ++i) {
        store_float(
            dtype_, gradient, run.begin + i,
            load_float(dtype_, gradient, run.begin + i) + load_float(dtype_, values_, rank + i));
      }
    }
    rank += run.length;
  };
  index::Ahead<Run, decltype(add)> ahead(add);
  for_each_run([&](uint64_t begin, uint64_t length) {
    const uint64_t width = dtype_bytes(dtype_);
    ahead.add({begin, length}, static_cast<uint8_t*>(gradient) + begin * width, length * width);
    return true;
  });
  ahead.flush();
}

}  // namespace addend::exact
