// SPDX-License-Identifier: Apache-2.0
// `addend bench`, shared by its parts: what is asked, what was measured, and how a subject is timed
// against memcpy.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "addend/result.h"

namespace addend::cli {

struct BenchOptions {
  uint64_t count = uint64_t{1} << 26;  ///< f32 elements of the dense gradient
  uint32_t repeats = 11;
  uint64_t seed = 1;
  bool quick = false;  ///< answers and bytes are judged, times are only shown
  std::string only;    ///< subjects whose name contains this

  bool wants(const std::string& subject) const { return subject.find(only) != std::string::npos; }
};

/// One codec step of one worker against memcpy of the dense gradient. Times are medians; factors
/// are medians of the factors within one pair, which a machine that changes speed does not disturb.
struct CodecLine {
  std::string subject;
  std::string codec;
  std::string mode;
  double memcpy_gb_per_s = 0;
  double encode_gb_per_s = 0;  ///< dense bytes / time
  double decode_gb_per_s = 0;
  double encode_x = 0;  ///< time / memcpy's time
  double decode_x = 0;
  double total_x = 0;
  uint64_t wire_bytes = 0;
  double ratio = 0;
};

/// Folds against memcpy, both in bytes read per second.
struct FoldLine {
  std::string op;
  double memcpy_gb_per_s = 0;
  double fold_gb_per_s = 0;
  double rate_x = 0;
};

/// A promise and what became of it.
struct Bar {
  std::string name;
  double value = 0;
  double limit = 0;
  bool at_most = true;  ///< or at least
  bool timed = false;   ///< depends on the machine: not judged in a quick run

  bool holds() const { return at_most ? value <= limit : value >= limit; }
};

struct BenchResults {
  std::vector<CodecLine> codecs;
  std::vector<FoldLine> folds;
  std::vector<Bar> bars;
};

/// The parts of a run; each checks its subjects' answers before it times them, and fails if one is
/// wrong.
Status bench_codecs(const BenchOptions& options, BenchResults& results);
Status bench_folds(const BenchOptions& options, BenchResults& results);
Status bench_quant(const BenchOptions& options, BenchResults& results);
Status bench_memory(const BenchOptions& options, BenchResults& results);

/// Microseconds a subject spent in its (up to two) parts.
struct Laps {
  double first_us = 0;
  double second_us = 0;
};

/// What a race found: medians, and medians of the factors within pairs.
struct RaceResult {
  double memcpy_us = 0;
  Laps subject;
  double first_x = 0;
  double second_x = 0;
  double total_x = 0;
};

/// memcpy of `bytes` from source to target; both are touched before the first pair.
struct Copy {
  const void* source = nullptr;
  void* target = nullptr;
  uint64_t bytes = 0;
};

/// Runs memcpy and the subject in turn, `repeats` times.
Result<RaceResult> race(const Copy& copy, uint32_t repeats,
                        const std::function<Result<Laps>()>& subject);

/// What a race of encoding and decoding says; names are the caller's to fill in.
CodecLine codec_line(const Report& report, const RaceResult& result);

}  // namespace addend::cli
