// SPDX-License-Identifier: Apache-2.0
// What the calls of a worker came to, in a job that may go on without workers that are late: of
// whom the sums of a step are, whether the step has to begin again, and, where a server has lost
// its memory, which of its calls had ended, and how.
// docs/decisions/0121-a-quorum-outlives-its-server.md has the argument why all workers come to the
// same. No sockets, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "addend/reduce.h"
#include "reduce/round_copy.h"

namespace addend::service_client {

/// Workers that are not in the chunks of a round: in some of them, in all of them.
struct Absence {
  uint64_t somewhere = 0, everywhere = ~uint64_t{0};
};

/// The epochs of a job, one after the other, as a worker's calls see them.
class Epochs {
 public:
  virtual ~Epochs() = default;
  /// Folds a round, `flags` being its frames'. Nothing if the server went before all of it was
  /// there: the planes are lost then.
  virtual Result<std::optional<Absence>> fold(Round& round, uint8_t flags, Deadline deadline) = 0;
  /// All workers of the job, none of them new, are in a new epoch; until when the rest may take.
  virtual Result<Deadline> rejoin(Deadline deadline) = 0;
  /// Between two questions to somebody who does not answer.
  virtual void pause() = 0;
};

/// One thread at a time.
class Outcomes {
 public:
  /// REQUIRES: world <= 64 where `run` is called.
  Outcomes(uint32_t world, uint32_t worker) : world_(world), worker_(worker) {}

  void begin_step();
  /// Of the frames of the call that begins.
  uint8_t flags() const;
  uint64_t missing() const { return missing_; }

  /// How a call ended whose round was folded: kChanged if its sums are not of the step's set.
  /// All workers see the same contributors of the same chunks, so they decide alike.
  Status take(const Absence& absence);

  /// A whole call. A server that goes and comes back makes it kChanged on all workers, unless it
  /// had ended for one of them: then it ends so for all. kUnavailable if the others are further
  /// than this worker can follow. REQUIRES: a round that is not empty.
  Status run(Round& round, Epochs& epochs, Deadline deadline);

 private:
  enum class How : uint64_t { kRestarted = 0, kSums = 1, kChanged = 2 };
  /// Where a worker is, in words that travel: the calls that have ended for it, and what whoever is
  /// one behind has to know of the last of them.
  struct Place {
    uint64_t ended = 0;
    How how = How::kRestarted;
    uint64_t words = 0;  // of its sums
    uint64_t missing = 0;
    bool operator==(const Place&) const = default;
  };
  /// A call that is under way, and how it ends, once that is known.
  struct Call {
    Round& round;
    std::optional<Status> outcome;
  };

  Status end(const Round& round, const Status& status);
  void end_restarted(Call& call);
  Result<bool> recover(Call& call, Epochs& epochs, Deadline until);
  Result<bool> ask(std::vector<Place>& places, Epochs& epochs, Deadline until);
  Result<bool> share(const Place& latest, Call& call, Epochs& epochs, Deadline until);
  Status follow(const Place& latest, RoundCopy& sums, Call& call);

  uint32_t world_, worker_;
  bool first_ = true;     // the call under way, or the next, is the first of a step
  bool entry_ = true;     // and absent workers may come back in it
  bool changed_ = false;  // the last step must begin again
  uint64_t missing_ = 0;
  // With a quorum.
  Place place_;
  RoundCopy sums_;     // of the last call
  uint32_t owed_ = 0;  // calls to come that have ended already
};

}  // namespace addend::service_client
