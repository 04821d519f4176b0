// SPDX-License-Identifier: Apache-2.0
// What a pipeline moves: a bucket, whose parts are encoded, reduced and decoded together, and the
// job that it belongs to. Neither knows of threads: a bucket is of one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "addend/pipeline.h"
#include "base/buffer.h"

namespace addend {

/// What was submitted. Its buckets are one, or as many as it has pieces; they end in order.
struct Job {
  Ticket ticket = 0;
  Submission what;
  Status status;
  std::vector<Span> spans;
  uint32_t repeats = 0;
  bool prepared = false;  // its first bucket was encoded; under the pipeline's mutex
  /// Pieces that were decoded, as they were before: a later one may fail.
  struct Saved {
    void* gradient = nullptr;
    uint64_t bytes = 0;
    Buffer copy;
  };
  std::vector<Saved> saved;

  /// Puts pieces back, and gives their copies' memory to `spare`.
  void restore(std::vector<Buffer>& spare);
  /// The job went well: pieces stay as they are, and `spare` gets the memory of their copies.
  void forget_saved(std::vector<Buffer>& spare);
};

/// One or several parts on their way.
class Bucket {
 public:
  /// `parts`: those of the job that it takes. `first`, `last`: of the job's buckets.
  Bucket(Job& job, std::span<const Part> parts, bool first, bool last);

  Job& job() const { return *job_; }
  std::span<const Part> parts() const { return parts_; }
  bool is_last_of_job() const { return last_; }
  const std::vector<Span>& spans() const { return spans_; }

  /// Whether what the job's first bucket prepares for all of them was prepared.
  bool is_prepared() const { return first_ || !job_->what.prepare || job_->prepared; }
  /// Whether its gradients may not be there yet: Submission::ready knows.
  bool has_to_ask() const { return !prepared_ && job_->what.ready; }
  /// Begins the step, or encodes the rounds that follow. Errors are kept in `status`.
  void encode();
  /// Whether there is something to reduce.
  bool has_round() const;
  /// No round follows, whatever the sums are.
  bool is_last_round() const;

  /// Starts what was encoded. The first time that also tells the others what this worker brings, or
  /// that it cannot go on.
  Status start(Reducer& reducer);
  bool announced() const { return announced_; }
  uint32_t rounds() const { return rounds_; }
  /// Whether all that was started is summed; false if the reducer was woken first.
  Result<bool> wait(Reducer& reducer, Deadline deadline);
  /// Whether the reducer has rounds of it that were not waited for.
  bool is_under_way() const;
  /// The first of them. REQUIRES: is_under_way().
  uint64_t next_number() const;
  /// Whether wait would say at once, and well, that all is summed.
  bool has_ended(const Reducer& reducer) const;
  Status set_missing(uint64_t workers);

  /// Takes back what was begun, so that it can be encoded once more.
  void cancel();
  /// Writes the sums. `spare`: memory for copies.
  void decode(std::vector<Buffer>& spare);

  bool encoded = false;  // handed on by whoever encodes; under the pipeline's mutex
  std::optional<Deadline> deadline;
  Status status;

 private:
  struct Way {
    Codec* codec = nullptr;
    void* gradient = nullptr;
    Round round;
    bool begun = false;
    bool has_round = false;
    std::optional<uint64_t> number;  // of the round that is under way
  };

  void begin(Way& way);
  void next_round(Way& way);
  Status save(const Way& way, std::vector<Buffer>& spare);
  std::vector<Reducer::Claim> claims() const;
  uint64_t fingerprint() const;
  void add_span(Stage stage, std::chrono::steady_clock::time_point begin);

  Job* job_;
  const std::span<const Part> parts_;
  const bool first_, last_;
  std::vector<Way> ways_;
  bool prepared_ = false;
  bool announced_ = false;
  uint32_t rounds_ = 0;
  std::optional<Error> changed_;
  std::chrono::steady_clock::time_point started_;  // the rounds under way
  std::vector<Span> spans_;
};

}  // namespace addend
