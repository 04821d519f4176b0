// SPDX-License-Identifier: Apache-2.0
// The mesh of the C ABI.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "addend/addend.h"
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "codec/rows/union.h"
#include "mesh/hauler.h"
#include "mesh/mesh.h"
#include "pipeline/trip.h"

struct addend_mesh {
  std::unique_ptr<addend::Mesh> mesh;
};

struct addend_trip {
  addend::Trip trip;
};

struct addend_hauler {
  std::unique_ptr<addend::Hauler> hauler;
};

struct addend_rows {
  addend::RowUnion merged;
};

using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;
using addend::capi::is_op;
using addend::capi::to_status;

namespace {

constexpr uint64_t kLongestWait = std::chrono::nanoseconds(std::chrono::hours(24)).count();

std::chrono::nanoseconds to_wait(uint64_t timeout_ns) {
  return std::chrono::nanoseconds(std::min(timeout_ns, kLongestWait));
}

uint64_t to_ns(std::chrono::steady_clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

addend::Result<std::vector<addend::Plane>> to_planes(const addend_plane* planes, uint32_t count) {
  std::vector<addend::Plane> out;
  out.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto plane = addend::to_cpp(planes[i]);
    if (!plane) return plane.error();
    out.push_back(*plane);
  }
  return out;
}

void show(const addend::Trip& trip, addend::TripState state, addend_trip_view& view) {
  view.state = static_cast<addend_trip_state>(state);
  view.round_number = trip.round_number();
  view.exchange = trip.exchange();
  view.round = addend::to_c(trip.round());
  const auto spans = trip.spans();
  view.span_count = static_cast<uint32_t>(std::min<std::size_t>(spans.size(), ADDEND_MAX_SPANS));
  for (uint32_t i = 0; i < view.span_count; ++i) {
    view.spans[i] = {static_cast<addend_stage>(spans[i].stage), to_ns(spans[i].begin),
                     to_ns(spans[i].end)};
  }
}

}  // namespace

extern "C" {

addend_status addend_mesh_create(uint32_t world, uint32_t rank, const int* sockets, int bell,
                                 addend_mesh** mesh) {
  return guarded([&] {
    if (sockets == nullptr || mesh == nullptr) return invalid("addend_mesh_create: null argument");
    *mesh = nullptr;
    auto made = addend::Mesh::create({sockets, world}, rank, bell);
    if (!made) return fail(made.error());
    *mesh = new addend_mesh{*std::move(made)};
    return ADDEND_OK;
  });
}

void addend_mesh_destroy(addend_mesh* mesh) { delete mesh; }

addend_status addend_mesh_start(addend_mesh* mesh, const addend_piece* pieces, uint32_t count,
                                uint64_t* exchange) {
  return guarded([&] {
    if (mesh == nullptr || exchange == nullptr || (pieces == nullptr && count > 0))
      return invalid("addend_mesh_start: null argument");
    std::vector<std::span<const uint8_t>> parts;
    parts.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      if (pieces[i].data == nullptr && pieces[i].size > 0)
        return invalid("addend_mesh_start: a piece without data");
      parts.emplace_back(static_cast<const uint8_t*>(pieces[i].data), pieces[i].size);
    }
    const auto started = mesh->mesh->start(parts);
    if (!started) return fail(started.error());
    *exchange = *started;
    return ADDEND_OK;
  });
}

addend_status addend_mesh_wait(addend_mesh* mesh, uint64_t exchange, uint64_t timeout_ns,
                               int* done) {
  return guarded([&] {
    if (mesh == nullptr || done == nullptr) return invalid("addend_mesh_wait: null argument");
    const auto ended = mesh->mesh->wait(exchange, to_wait(timeout_ns));
    if (!ended) return fail(ended.error());
    *done = *ended ? 1 : 0;
    return ADDEND_OK;
  });
}

addend_status addend_mesh_message(const addend_mesh* mesh, uint64_t exchange, uint32_t rank,
                                  addend_piece* message) {
  return guarded([&] {
    if (mesh == nullptr || message == nullptr) return invalid("addend_mesh_message: null argument");
    const auto found = mesh->mesh->message(exchange, rank);
    if (!found) return fail(found.error());
    *message = {found->data(), found->size()};
    return ADDEND_OK;
  });
}

addend_status addend_mesh_sum(const addend_mesh* mesh, uint64_t exchange, uint64_t offset,
                              const addend_plane* planes, uint32_t count) {
  return guarded([&] {
    if (mesh == nullptr || (planes == nullptr && count > 0))
      return invalid("addend_mesh_sum: null argument");
    auto sums = to_planes(planes, count);
    if (!sums) return fail(sums.error());
    return to_status(mesh->mesh->sum(exchange, offset, *sums));
  });
}

addend_status addend_mesh_release(addend_mesh* mesh, uint64_t exchange) {
  return guarded([&] {
    if (mesh == nullptr) return invalid("addend_mesh_release: null argument");
    return to_status(mesh->mesh->release(exchange));
  });
}

addend_status addend_trip_create(addend_mesh* mesh, addend_codec* codec, addend_trip** trip) {
  return guarded([&] {
    if (mesh == nullptr || codec == nullptr || trip == nullptr)
      return invalid("addend_trip_create: null argument");
    *trip = new addend_trip{{*mesh->mesh, *codec->codec}};
    return ADDEND_OK;
  });
}

void addend_trip_destroy(addend_trip* trip) { delete trip; }

addend_status addend_trip_begin(addend_trip* trip, void* gradient, int in_place, const void* header,
                                uint64_t header_bytes, uint64_t alike_bytes, uint64_t mesh_bytes,
                                int decode) {
  return guarded([&] {
    if (trip == nullptr || (header == nullptr && header_bytes > 0))
      return invalid("addend_trip_begin: null argument");
    return to_status(trip->trip.begin(gradient, {static_cast<const uint8_t*>(header), header_bytes},
                                      {in_place != 0, alike_bytes, mesh_bytes, decode != 0}));
  });
}

addend_status addend_trip_encode(addend_trip* trip) {
  return guarded([&] {
    if (trip == nullptr) return invalid("addend_trip_encode: null argument");
    return to_status(trip->trip.encode());
  });
}

addend_status addend_trip_run(addend_trip* trip, uint64_t timeout_ns, addend_trip_view* view) {
  return guarded([&] {
    if (trip == nullptr || view == nullptr) return invalid("addend_trip_run: null argument");
    const auto state = trip->trip.run(to_wait(timeout_ns));
    if (!state) return fail(state.error());
    show(trip->trip, *state, *view);
    return ADDEND_OK;
  });
}

addend_status addend_trip_reduced(addend_trip* trip) {
  return guarded([&] {
    if (trip == nullptr) return invalid("addend_trip_reduced: null argument");
    trip->trip.reduced();
    return ADDEND_OK;
  });
}

void addend_trip_cancel(addend_trip* trip) {
  if (trip != nullptr) trip->trip.cancel();
}

uint32_t addend_trip_round_number(const addend_trip* trip) {
  return trip == nullptr ? 0 : trip->trip.round_number();
}

addend_status addend_hauler_create(uint32_t world, uint32_t rank, const int* sockets, int bell,
                                   int ringer, addend_hauler** hauler) {
  return guarded([&] {
    if (sockets == nullptr || hauler == nullptr)
      return invalid("addend_hauler_create: null argument");
    *hauler = nullptr;
    auto made = addend::Hauler::create({sockets, world}, rank, bell, ringer);
    if (!made) return fail(made.error());
    *hauler = new addend_hauler{*std::move(made)};
    return ADDEND_OK;
  });
}

void addend_hauler_destroy(addend_hauler* hauler) { delete hauler; }

addend_status addend_hauler_start(addend_hauler* hauler, const addend_plane* planes, uint32_t count,
                                  uint64_t* haul) {
  return guarded([&] {
    if (hauler == nullptr || haul == nullptr || (planes == nullptr && count > 0))
      return invalid("addend_hauler_start: null argument");
    const auto sums = to_planes(planes, count);
    if (!sums) return fail(sums.error());
    const auto started = hauler->hauler->start(*sums);
    if (!started) return fail(started.error());
    *haul = *started;
    return ADDEND_OK;
  });
}

addend_status addend_hauler_wait(addend_hauler* hauler, uint64_t haul, uint64_t timeout_ns,
                                 int* done) {
  return guarded([&] {
    if (hauler == nullptr || done == nullptr) return invalid("addend_hauler_wait: null argument");
    const auto ended = hauler->hauler->wait(haul, to_wait(timeout_ns));
    if (!ended) return fail(ended.error());
    *done = *ended ? 1 : 0;
    return ADDEND_OK;
  });
}

void addend_hauler_abandon(addend_hauler* hauler) {
  if (hauler != nullptr) hauler->hauler->abandon();
}

addend_status addend_rows_create(addend_rows** rows) {
  return guarded([&] {
    if (rows == nullptr) return invalid("addend_rows_create: null argument");
    *rows = new addend_rows;
    return ADDEND_OK;
  });
}

void addend_rows_destroy(addend_rows* rows) { delete rows; }

addend_status addend_rows_merge(addend_rows* rows, const int64_t* const* parts,
                                const uint64_t* sizes, uint32_t count, uint64_t* different) {
  return guarded([&] {
    if (rows == nullptr || different == nullptr ||
        (count > 0 && (parts == nullptr || sizes == nullptr)))
      return invalid("addend_rows_merge: null argument");
    std::vector<std::span<const int64_t>> numbers;
    numbers.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      if (sizes[i] > 0 && parts[i] == nullptr)
        return invalid("addend_rows_merge: a part without rows");
      numbers.emplace_back(parts[i], sizes[i]);
    }
    *different = rows->merged.merge(numbers);
    return ADDEND_OK;
  });
}

addend_status addend_rows_places(const addend_rows* rows, const uint64_t** places) {
  return guarded([&] {
    if (rows == nullptr || places == nullptr) return invalid("addend_rows_places: null argument");
    *places = rows->merged.places().data();
    return ADDEND_OK;
  });
}

static std::optional<addend::RowElement> element_of(addend_op op) {
  switch (op) {
    case ADDEND_OP_SUM_F32:
      return addend::RowElement::kF32;
    case ADDEND_OP_SUM_BF16:
      return addend::RowElement::kBf16;
    case ADDEND_OP_SUM_F16:
      return addend::RowElement::kF16;
    case ADDEND_OP_SUM_I64:
      return addend::RowElement::kI64;
    case ADDEND_OP_SUM_I32:
      return addend::RowElement::kI32;
    case ADDEND_OP_SUM_U8:
      return addend::RowElement::kU8;
    default:
      return {};
  }
}

addend_status addend_rows_sum(const addend_rows* rows, addend_op op, uint64_t lanes,
                              const void* const* values, int64_t* merged, void* total) {
  return guarded([&] {
    const auto element = element_of(op);
    if (!element) return invalid("addend_rows_sum: not a sum of elements");
    if (rows == nullptr || (values == nullptr && rows->merged.parts() > 0))
      return invalid("addend_rows_sum: null argument");
    const auto numbers = rows->merged.rows();
    if (!numbers.empty() && (merged == nullptr || (total == nullptr && lanes > 0)))
      return invalid("addend_rows_sum: null argument");
    std::copy(numbers.begin(), numbers.end(), merged);
    rows->merged.sum(*element, lanes, {values, rows->merged.parts()}, total);
    return ADDEND_OK;
  });
}

}  // extern "C"
