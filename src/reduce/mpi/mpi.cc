// SPDX-License-Identifier: Apache-2.0
// One round = one MPI_Iallreduce per plane and gigabyte, with MPI's own SUM, BOR and MAX;
// half-precision sums, which MPI 4 does not know, are a user operation that calls `fold`. Polling
// instead of blocking keeps the deadline.
#include "addend/reduce.h"

#ifdef ADDEND_HAVE_MPI

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <mpi.h>

#include "addend/fold.h"
#include "reduce/host_memory.h"

namespace addend {
namespace {

// Planes travel through a buffer of the reducer's own, in pieces: a collective cannot be cancelled,
// so after a deadline MPI may still write to the memory it was given, which must then not be a
// codec's. Two copies cost little beside a network.
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

// Set when a communicator broke with a collective in flight: MPI_Finalize would wait for it.
std::atomic<bool> g_collective_lost{false};

struct MpiKind {
  MPI_Datatype type;
  MPI_Op op;
};

Error mpi_error(const char* call, int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return make_error(Errc::kUnavailable, std::string(call) + ": " + text.data());
}

template <Op kOp>
void fold_operation(void* in, void* acc, int* lanes, MPI_Datatype*) {
  fold(kOp, acc, in, static_cast<uint64_t>(*lanes));
}

class MpiReducer final : public Reducer {
 public:
  static Result<std::unique_ptr<Reducer>> create() {
    auto reducer = std::unique_ptr<MpiReducer>(new MpiReducer);
    if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &reducer->comm_); code != MPI_SUCCESS) {
      return mpi_error("MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(reducer->comm_, MPI_ERRORS_RETURN);
    MPI_Comm_size(reducer->comm_, &reducer->world_);
    MPI_Comm_rank(reducer->comm_, &reducer->worker_);
    MPI_Comm neighbours = MPI_COMM_NULL;
    if (const int code = MPI_Comm_split_type(reducer->comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                                             &neighbours);
        code != MPI_SUCCESS) {
      return mpi_error("MPI_Comm_split_type", code);
    }
    MPI_Comm_size(neighbours, &reducer->local_workers_);
    MPI_Comm_free(&neighbours);
    MPI_Op_create(&fold_operation<Op::kSumBf16>, 1, &reducer->sum_bf16_);
    MPI_Op_create(&fold_operation<Op::kSumF16>, 1, &reducer->sum_f16_);
    return std::unique_ptr<Reducer>(std::move(reducer));
  }

  ~MpiReducer() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    // After a timeout a request may still be in flight; freeing its communicator would block on the
    // missing peer.
    if (finalized != 0 || !broken_.empty()) return;
    MPI_Op_free(&sum_bf16_);
    MPI_Op_free(&sum_f16_);
    MPI_Comm_free(&comm_);
  }

  uint32_t world() const override { return static_cast<uint32_t>(world_); }
  uint32_t worker() const override { return static_cast<uint32_t>(worker_); }
  uint32_t local_workers() const override { return static_cast<uint32_t>(local_workers_); }

  Status reduce(Round& round, Deadline deadline) override {
    ADDEND_TRY(check_usable());
    ADDEND_TRY(check_host_memory(round));
    for (Plane& plane : round) {
      if (is_table_sum(plane.op)) {
        return make_error(Errc::kUnsupported, std::string("the MPI reducer cannot do ") +
                                                  op_name(plane.op) + "; use planes of level sums");
      }
    }
    for (Plane& plane : round) {
      const uint64_t width = op_bytes(plane.op, 1), step = kPieceBytes / width;
      for (uint64_t begin = 0; begin < plane.lanes; begin += step) {
        auto* piece = static_cast<uint8_t*>(plane.data) + begin * width;
        const uint64_t lanes = std::min(step, plane.lanes - begin);
        ADDEND_TRY(reduce_piece(kind(plane.op), piece, lanes * width, lanes, deadline));
      }
    }
    return {};
  }

 private:
  MpiReducer() = default;

  MpiKind kind(Op op) const {
    switch (op) {
      case Op::kSumF32:
        return {MPI_FLOAT, MPI_SUM};
      case Op::kSumBf16:
        return {MPI_UINT16_T, sum_bf16_};
      case Op::kSumF16:
        return {MPI_UINT16_T, sum_f16_};
      case Op::kSumI32:  // unsigned, because signed overflow is undefined in MPI's C
        return {MPI_UINT32_T, MPI_SUM};
      case Op::kSumI64:
        return {MPI_UINT64_T, MPI_SUM};
      case Op::kSumU8:
        return {MPI_UINT8_T, MPI_SUM};
      case Op::kSumU16:
        return {MPI_UINT16_T, MPI_SUM};
      case Op::kOrU64:
        return {MPI_UINT64_T, MPI_BOR};
      default:  // max_u32; table sums were refused
        break;
    }
    return {MPI_UINT32_T, MPI_MAX};
  }

  Status reduce_piece(const MpiKind& kind, void* data, uint64_t bytes, uint64_t lanes,
                      Deadline deadline) {
    std::memcpy(staging_->data(), data, bytes);
    ADDEND_TRY(reduce_staged(kind, lanes, deadline));
    std::memcpy(data, staging_->data(), bytes);
    return {};
  }

  Status reduce_staged(const MpiKind& kind, uint64_t lanes, Deadline deadline) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallreduce(MPI_IN_PLACE, staging_->data(), static_cast<int>(lanes), kind.type,
                              kind.op, comm_, &request);
    if (code != MPI_SUCCESS) return broke(mpi_error("MPI_Iallreduce", code));
    int done = 0;
    while (true) {
      code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) return broke(mpi_error("MPI_Test", code));
      if (done != 0) return {};
      if (std::chrono::steady_clock::now() >= deadline) {
        return broke(make_error(Errc::kTimeout, "worker " + std::to_string(worker_) + " of " +
                                                    std::to_string(world_) +
                                                    ": the deadline passed in MPI_Iallreduce; "
                                                    "a peer is missing or stuck"));
      }
      std::this_thread::yield();
    }
  }

  Error broke(const Error& error) {
    broken_ = "the MPI communicator is unusable since: " + error.message;
    g_collective_lost = true;
    staging_.release();  // left to MPI, see kPieceBytes
    return error;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Op sum_bf16_ = MPI_OP_NULL;
  MPI_Op sum_f16_ = MPI_OP_NULL;
  int world_ = 1;
  int worker_ = 0;
  int local_workers_ = 1;
  std::unique_ptr<std::vector<uint64_t>> staging_ =
      std::make_unique<std::vector<uint64_t>>(kPieceBytes / 8);
};

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !g_collective_lost) MPI_Finalize();
}

Status initialize() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized == 0) {
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
        code != MPI_SUCCESS) {
      return mpi_error("MPI_Init_thread", code);
    }
    std::atexit(finalize_at_exit);
  }
  MPI_Query_thread(&provided);
  if (provided >= MPI_THREAD_SERIALIZED) return {};
  return make_error(Errc::kUnsupported,
                    "MPI was initialised without thread support: MPI_THREAD_SERIALIZED is needed");
}

}  // namespace

bool has_mpi() { return true; }

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

Result<std::unique_ptr<Reducer>> create_mpi_reducer() {
  ADDEND_TRY(initialize());
  return MpiReducer::create();
}

}  // namespace addend

#else

namespace addend {

bool has_mpi() { return false; }
std::string mpi_library() { return {}; }
Result<std::unique_ptr<Reducer>> create_mpi_reducer() {
  return make_error(
      Errc::kUnsupported,
      "this build has no MPI reducer; install libopenmpi-dev or libmpich-dev and build again");
}

}  // namespace addend

#endif
