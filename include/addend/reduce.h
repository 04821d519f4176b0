// SPDX-License-Identifier: Apache-2.0
// Reducers perform one round across workers. They see planes and operations, never a codec.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "addend/access.h"
#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

using Deadline = std::chrono::steady_clock::time_point;

/// What one network step costs, however small, and what a link carries.
struct Link {
  double latency_us = 50;
  double gbit_per_s = 10;
};

/// One worker's end of a group. Calls are collective: all workers make the same calls in the same
/// order. One thread at a time. After an error other than kInvalidArgument, kMismatch or kChanged
/// the group is unusable and every later call says so.
class Reducer {
 public:
  virtual ~Reducer() = default;

  virtual uint32_t world() const = 0;
  virtual uint32_t worker() const = 0;
  /// Workers on this one's host, itself included; 0 where the group cannot tell.
  virtual uint32_t local_workers() const { return 0; }

  /// Folds every plane of the round over all workers, in place (table sums: into Plane::sums).
  virtual Status reduce(Round& round, Deadline deadline) = 0;

  /// The next round is the first of a step. Of interest to groups that go on without workers that
  /// are late: all sums of a step are of one set of workers, which its first round decides, and a
  /// worker that is not in it has another chance in the next step. A later round with another set
  /// is kChanged on all workers, and so is any round if a server goes and comes back meanwhile: its
  /// sums are of no use, and the step must begin again, with this call. agree makes it.
  virtual void begin_step() {}
  /// How many workers suffice for a sum when others are late; 0: all are waited for. Then
  /// begin_step must be called, and kChanged can come.
  virtual uint32_t quorum() const { return 0; }
  /// Workers that are not in the sums of this step: bit w is worker w. Known after its first round.
  virtual uint64_t missing() const { return 0; }

  /// What the network between the workers does, the same on all of them; of interest to groups that
  /// have several ways to do a round.
  virtual void set_link(const Link&) {}

  /// How far a sum of floats may be from what adding them as floats gives, in units of the largest
  /// magnitude among the workers' lanes near it: 0 unless floats travel as integers. A lane that is
  /// not finite then makes up to 255 neighbours NaN as well.
  virtual double float_error() const { return 0; }

  /// Something that must be the same on all workers, and what to call it in an error.
  struct Claim {
    const char* what;
    uint64_t value;
  };
  /// Succeeds on all workers if all made the same claims, else fails with kMismatch on all and
  /// names the first that differs. One small round of fixed size, the first of a step, so it is
  /// safe to call where layouts may differ.
  Status agree(std::span<const Claim> claims, Deadline deadline);
  static constexpr std::size_t kMaxClaims = 8;
  /// agree, then reduce unless the round has no planes. May have both under way at once, so after a
  /// kMismatch the group may be unusable.
  virtual Status reduce_step(std::span<const Claim> claims, Round& round, Deadline deadline);

  // ---- The same in two halves, so that several rounds can be under way: reduce is start and wait,
  // and what agree compares can travel with the first round of a step. A reducer that does not say
  // otherwise does all its work in wait, in the order of starts.

  /// Starts to fold a round; it and its planes are the reducer's until wait has answered for it, or
  /// abandon has returned. Returns the number to wait for. Workers start the same rounds in the
  /// same order and may wait for them in any.
  virtual Result<uint64_t> start(Round& round);
  /// The same for the first round of a step, with what agree would be asked. A worker that brings
  /// other claims or planes is kMismatch on all, out of wait.
  virtual Result<uint64_t> start_step(std::span<const Claim> claims, Round& round);
  /// Whether the round is folded: true once for each number, false if wake was called first, or if
  /// it takes long. A deadline that passes is kTimeout.
  virtual Result<bool> wait(uint64_t number, Deadline deadline);
  /// Until one of these rounds has ended, the first of them being the oldest: then true. False and
  /// errors as of wait, which is still to be called. Reducers that reduce inside wait answer at
  /// once.
  virtual Result<bool> wait_any(std::span<const uint64_t> numbers, Deadline deadline);
  /// Whether wait would say at once, and well, that the round is folded.
  virtual bool has_ended(uint64_t) const { return false; }
  /// From any thread: ends the wait under way, or the next one if no round is started before it.
  virtual void wake() {}
  /// Whether wake does that, and signals too; reducers that reduce inside wait take no notice.
  virtual bool can_wake() const { return false; }
  /// From any thread: what is under way here, and whatever is asked for later, fails soon.
  virtual void interrupt() {}
  /// No plane is touched any more, and nothing works.
  virtual void abandon();

 protected:
  /// A round that wait is to do, for reducers that do all their work there.
  struct Started {
    uint64_t number = 0;
    Round* round = nullptr;
    bool first = false;  // of a step: agree before it
    std::size_t claim_count = 0;
    std::array<Claim, kMaxClaims> claims{};
    Status status;
    bool over = false;
  };
  /// For wait, which has it done only once. Its errors are the round's.
  void fold(Started& started, Deadline deadline);
  /// kUnavailable once broken_ says why.
  Status check_usable() const;
  /// The error, which is why from now on.
  Error broken_by(const Error& error);
  /// The same for an error after which a group is of no use.
  Status noted(Status status);
  std::deque<Started> started_;
  std::string broken_;  // why nothing works any more
  uint64_t next_number_ = 0;
};

/// Times small rounds and large ones; the figures of the slowest worker, on all of them.
/// Collective.
Result<Link> measure_link(Reducer& reducer, Deadline deadline);

/// How a local group combines the workers' planes. Sums of floats depend on it in the last bits;
/// integers do not.
enum class FoldOrder : uint8_t {
  kSequential,  ///< worker 0, 1, 2, ...
  kPermuted,    ///< a seeded permutation, another one each round
  kTree,        ///< a seeded random binary tree
};

struct LocalOptions {
  FoldOrder order = FoldOrder::kSequential;
  uint64_t seed = 0;
};

/// Workers that are threads of this process. Shared by its reducers; each end belongs to one
/// thread.
class LocalGroup {
 public:
  virtual ~LocalGroup() = default;
  virtual uint32_t world() const = 0;
  /// The end of worker `worker`; may outlive the group object. REQUIRES: worker < world(), one end
  /// per worker.
  virtual std::unique_ptr<Reducer> reducer(uint32_t worker) = 0;
};

/// A group of one takes planes of a CUDA device as well: they stay there.
Result<std::unique_ptr<LocalGroup>> create_local_group(uint32_t world,
                                                       const LocalOptions& options = {});

/// Whether this build has the MPI reducer.
bool has_mpi();
/// The MPI library's own description, empty without MPI.
std::string mpi_library();

/// The MPI reducer over a duplicate of MPI_COMM_WORLD. Initialises MPI (thread-serialised at least)
/// if nobody has, and then finalises it when the process exits. Collective. kUnsupported in a build
/// without MPI.
Result<std::unique_ptr<Reducer>> create_mpi_reducer();

struct MeshOptions {
  /// "host:port" of every worker, by number, the same list on all of them. This worker listens at
  /// its own, the others connect to it.
  std::vector<std::string> peers;
  uint32_t worker = 0;
  /// A listening socket for this worker's address, which the reducer takes over; -1: one is made.
  int listener = -1;
  /// At most 32 bytes that only workers of this group know. Connections are neither encrypted nor
  /// authenticated beyond it: like those of collective libraries, for networks one trusts.
  std::string token;
  /// How long to wait for the other workers.
  std::chrono::milliseconds join_timeout{60000};
  /// Rounds up to where one step with everyone's bytes beats two steps with a share of them are
  /// exchanged. The same on all workers.
  Link link;
};

/// Workers in processes of their own, each connected to each other by TCP (1 to 256). Adds every
/// operation, in the order of workers: sums of floats are the same bits on all of them and in every
/// run. Returns when all are connected. Planes of rounds that were started move while somebody
/// waits.
Result<std::unique_ptr<Reducer>> create_mesh_reducer(const MeshOptions& options);

struct ServiceReducerOptions {
  ServiceAccess access;
  std::string job = "default";
  uint32_t world = 1;  ///< 1 to 64; at a leaf of a tree 1 to 4096
  uint32_t worker = 0;
  uint32_t slots = 512;  ///< contributions in flight; counts if this worker's join makes the job
  /// At most, likewise: 1408 for an MTU of 1500, 8832 for 9000. Less where a path carries less.
  uint32_t payload_bytes = 1408;
  std::chrono::nanoseconds patience{0};  ///< likewise; 0: until the caller's deadline
  /// Likewise; 0: every worker must contribute. Otherwise a step goes on without the workers that
  /// are not there when patience ends, if at least so many are: see Reducer::missing.
  uint32_t quorum = 0;
  /// How long to wait for the server and the other workers when joining.
  std::chrono::milliseconds join_timeout{60000};
  /// How long to wait for a server that is gone to come back; 0: until the caller's deadline.
  std::chrono::milliseconds return_timeout{0};
};

/// Whether this build has the aggregation service and its client.
bool has_service();

/// A worker's end of a job at an aggregation server, or at several, each of which then sums a share
/// of every round (docs/service.md): all workers list them in one order. Returns when all workers
/// have joined. In a job that does not allow floats their sums travel as integers. kUnsupported in
/// a build without the service, and for a quorum over several servers.
Result<std::unique_ptr<Reducer>> create_service_reducer(const ServiceReducerOptions& options);

/// Folds every plane of a round over all workers, in place (table sums: into Plane::sums).
using ReduceFunction = std::function<Status(Round&, Deadline)>;

struct CustomOptions {
  uint32_t world = 1;
  uint32_t worker = 0;
  /// The function is given rounds of a CUDA device, too. Round::execution then is a stream in which
  /// the planes are written, and where the function leaves what it enqueues: the reducer waits for
  /// that, until the deadline; what is still under way then is the caller's to end. Otherwise such
  /// rounds are refused, as they are by reducers of the host.
  bool takes_devices = false;
};

/// The caller's own engine. Its function is called by one thread at a time, and not again once it
/// has failed (kInvalidArgument, kMismatch and kChanged say that nothing was lost) or was
/// abandoned.
Result<std::unique_ptr<Reducer>> create_custom_reducer(const CustomOptions& options,
                                                       ReduceFunction function);

struct StagedOptions {
  /// Rounds beyond this travel in chunks of about so many bytes. The same on all workers.
  uint64_t chunk_bytes = uint64_t{4} << 20;
  static constexpr uint64_t kLeastBytes = 4096;
};

/// Takes rounds whose planes are in a CUDA device's memory (Round::execution) to a reducer that
/// knows the host's alone: through pinned memory, in chunks, so that the bus is busy in both
/// directions while the wire is. Rounds of the host are cut into the same chunks and not copied, so
/// workers of both kinds can be in one group if all of them stage. A round is summed when its sums
/// are ordered before whatever its stream is given next.
Result<std::unique_ptr<Reducer>> create_staged_reducer(std::unique_ptr<Reducer> host,
                                                       const StagedOptions& options = {});

/// Reduces with `primary` until that fails with kUnavailable, kTimeout or kIo, and from then on
/// with `fallback`: the round in which it failed too, and every sum is as if nothing had happened.
/// All workers of the one group are those of the other. What is left of the deadline is the
/// fallback's, so a primary should give up earlier (ServiceReducerOptions::return_timeout). Keeps a
/// copy of a round's planes and of its sums. `on_switch` is told why, once, from the thread that
/// reduces. A primary that goes while workers are missing (a quorum) is kUnavailable. After a
/// kMismatch of a primary without a quorum all ask the fallback, too: claims and planes are
/// compared there before the first are summed. Any error of this reducer but kInvalidArgument and
/// kChanged is for good.
Result<std::unique_ptr<Reducer>> create_fallback_reducer(
    std::unique_ptr<Reducer> primary, std::unique_ptr<Reducer> fallback,
    std::function<void(const Error&)> on_switch = nullptr);

}  // namespace addend
