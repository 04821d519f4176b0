// SPDX-License-Identifier: Apache-2.0
// Stored bytes of every format: files of accept/ decode to the stored sums, files of reject/ give
// the error their name begins with, and codecs put the planes of rounds.txt on the wire. README.md
// says when the stored files may change and how.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "addend/codec.h"
#include "addend/file.h"
#include "addend/fold.h"
#include "addend/snapshot.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

const fs::path kGolden = ADDEND_GOLDEN_DIR;

Bytes read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const fs::path& path, const Bytes& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::vector<fs::path> files_in(const char* directory, const char* extension) {
  std::set<fs::path> found;
  for (const auto& entry : fs::directory_iterator(kGolden / directory)) {
    if (entry.path().extension() == extension) found.insert(entry.path());
  }
  return {found.begin(), found.end()};
}

// --- The gradients that everything was made of

// Whole eighths at about a tenth of the positions; all sums are exact in every dtype.
NpyArray gradient(DType dtype, uint64_t count, uint64_t seed) {
  NpyArray array;
  array.dtype = dtype;
  array.count = count;
  array.shape = {count};
  array.storage.resize(count * dtype_bytes(dtype) / 8 + 1);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t random = addend_random(seed, i);
    if (random % 10 != 0) continue;
    const float value = (static_cast<float>(random >> 32 & 63) - 31.5f) / 4;
    uint32_t bits = addend_f32_bits(value);
    if (dtype == DType::kBf16) bits = addend_bf16_from_f32(value);
    if (dtype == DType::kF16) bits = addend_f16_from_f32(value);
    std::memcpy(reinterpret_cast<uint8_t*>(array.data()) + i * dtype_bytes(dtype), &bits,
                dtype_bytes(dtype));
  }
  return array;
}

std::vector<NpyArray> three(DType dtype, bool with_nan) {
  std::vector<NpyArray> arrays;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    arrays.push_back(gradient(dtype, 300, seed));
  if (with_nan) {
    auto* first = static_cast<float*>(arrays[0].data());
    first[7] = std::nanf("");
    first[8] = INFINITY;
    first[9] = -INFINITY;
    static_cast<float*>(arrays[1].data())[8] = -INFINITY;
    static_cast<float*>(arrays[2].data())[11] = 0x1p-149f;
  }
  return arrays;
}

// --- Snapshots and files

Snapshot as_snapshot(AddFile&& file) {
  Snapshot snapshot;
  snapshot.storage = std::move(file.storage);
  snapshot.planes = file.planes;
  return snapshot;
}

/// What `addend unpack` does.
Result<NpyArray> unpack(const fs::path& path) {
  auto file = read_add_file(path.string());
  ADDEND_TRY(file);
  const auto plan = SnapshotPlan::parse(file->plan);
  ADDEND_TRY(plan);
  ADDEND_TRY(check_snapshot(*plan, file->planes));
  NpyArray out;
  out.dtype = plan->dtype;
  out.count = plan->count;
  out.shape = file->shape;
  out.storage.resize(plan->count * dtype_bytes(plan->dtype) / 8 + 1);
  ADDEND_TRY(decode_snapshot(*plan, as_snapshot(std::move(*file)), out.data()));
  return out;
}

SnapshotPlan plan_for(const std::vector<NpyArray>& arrays, const char* codec) {
  std::vector<GradientView> views;
  for (const NpyArray& array : arrays)
    views.push_back({array.data(), array.count, array.dtype});
  SnapshotOptions options;
  options.codec.name = codec;
  options.contributors = 16;
  const auto plan = plan_snapshots(views, options);
  if (!plan) std::abort();
  return *plan;
}

AddFile pack(const SnapshotPlan& plan, const NpyArray& array) {
  auto snapshot = encode_snapshot(plan, {array.data(), array.count, array.dtype});
  if (!snapshot) std::abort();
  AddFile file;
  file.plan = plan.serialize();
  file.shape = array.shape;
  file.max_contributors = plan.contributors;
  file.storage = std::move(snapshot->storage);
  file.planes = snapshot->planes;
  return file;
}

AddFile pack_sum(const SnapshotPlan& plan, const std::vector<NpyArray>& arrays) {
  AddFile sum = pack(plan, arrays[0]);
  for (std::size_t i = 1; i < arrays.size(); ++i) {
    if (!fold_files(sum, pack(plan, arrays[i]))) std::abort();
  }
  return sum;
}

// --- Rounds as text

struct RoundsCase {
  const char* spec;
  DType dtype;
  uint64_t count;
  double scale = 1;
  uint64_t first_step = 0;
  std::vector<Segment> segments = {};
  double latency_us = NetworkHint{}.latency_us;
};
const std::vector<RoundsCase> kRounds = {
    {"dense", DType::kF32, 64},
    {"exact:mode=packed", DType::kF32, 130},
    {"exact:mode=packed", DType::kBf16, 200},
    {"exact:mode=two-level,block=10", DType::kF32, 195},
    {"exact:mode=sketch,density=0.2", DType::kF32, 130},
    {"exact:mode=sketch,density=0.2,lanes=4", DType::kF16, 200},
    {"exact:mode=sketch,density=0.11", DType::kF32, 200},  // too small: keys stick
    {"exact:mode=sketch,density=0.08", DType::kF32, 200},  // far too small: packed
    {"exact:mode=bloom,density=0.1", DType::kF16, 1000},
    {"exact:mode=bloom,density=0.01", DType::kF16, 1000, 1, 0, {}, 0},  // too small: asks
    {"exact:mode=bloom,density=0.05,values=reproducible", DType::kBf16, 1000},
    {"exact:mode=gather", DType::kF32, 300},
    {"exact:mode=gather", DType::kBf16, 300, 0.5},
    {"exact:mode=packed,values=reproducible", DType::kF32, 130},
    {"exact:mode=packed,values=reproducible,tolerance=0.001", DType::kF32, 130},
    {"exact:mode=two-level,values=reproducible,block=16", DType::kBf16, 160},
    {"exact:mode=sketch,density=0.2,values=reproducible", DType::kF32, 130},
    {"quant", DType::kF32, 130},  // seven bits fill the lanes of two workers
    {"quant:bits=4", DType::kF32, 130},
    {"quant:carrier=indices,block=64", DType::kBf16, 130},
    {"quant:bits=auto,budget=5,block=64", DType::kF32, 200},
    {"quant:bits=8,block=64", DType::kF32, 130},                // 2 x 255 levels: lanes of u16
    {"quant:bits=auto,budget=7.5,block=64", DType::kF32, 200},  // lanes of u8 and of u16
    {"quant:bits=2,block=64,feedback=float", DType::kF16, 100},
    {"quant:levels=published,rotate=none,rounding=independent,block=64", DType::kF32, 100},
    {"dense", DType::kBf16, 64, 0.5},
    {"exact:mode=packed", DType::kF16, 130, 1.0 / 3},
    {"quant:bits=4,block=64,feedback=float", DType::kF32, 210, 0.5, 6, {{7, 140}, {3, 70}}},
    {"quant:bits=auto,feedback=byte", DType::kF32, 210, 1, 0, {{3, 70}, {7, 140}}},
    {"quant:bits=4,index=packed,block=64", DType::kF32, 300},
    {"quant:bits=4,index=two-level,feedback=float", DType::kBf16, 210, 0.5, 2, {{7, 140}, {3, 70}}},
    {"quant:norms=ahead,bits=4,feedback=byte,block=64", DType::kF32, 130},
    {"quant:bits=1,down=4,block=64", DType::kF32, 130},
    {"quant:bits=2,down=8,block=64", DType::kBf16, 130},
    {"quant:bits=3,down=4", DType::kF32, 130, 0.5, 6, {{7, 70}, {3, 60}}},
    {"quant:bits=3,down=8,block=64", DType::kF16, 130},
    {"quant:bits=8,down=4,feedback=float", DType::kF32, 600},  // rounded on the way back
    {"quant:bits=8,down=8,block=64", DType::kF16, 130},
    {"quant:bits=4,index=packed,down=8,block=64", DType::kF32, 300},
    {"quant:bits=8,index=two-level,down=4,feedback=float",
     DType::kBf16,
     1200,
     0.5,
     2,
     {{7, 1100}, {3, 100}}},
    {"quant:norms=ahead,bits=8,down=4,feedback=float,block=64", DType::kF32, 130},
    {"cast:to=bf16", DType::kF32, 130},
    {"cast:to=f16", DType::kBf16, 130, 1.0 / 3},
    {"cast:to=f16,feedback=float", DType::kF32, 130, 1.0 / 3, 4, {{7, 100}, {3, 30}}},
    {"lowrank:rank=2", DType::kF32, 130, 1.0 / 3, 4, {{7, 100, 10}, {3, 30}}},
    {"lowrank:rank=1", DType::kBf16, 130, 1, 0, {{7, 30, 2}, {3, 100, 5}}},
    {"lowrank:rank=2,factors=bf16", DType::kF32, 130, 1.0 / 3, 4, {{7, 100, 10}, {3, 30}}},
    {"lowrank:rank=1,factors=quant", DType::kF32, 130, 0.5, 3, {{7, 100, 10}, {3, 30}}},
    {"topk:density=0.1,index=packed", DType::kF32, 130, 1.0 / 3, 4, {{7, 100}, {3, 30}}},
    {"topk:density=0.05,index=two-level", DType::kF16, 130},
    {"random:density=0.1", DType::kF32, 130, 0.5, 2, {{7, 100}, {3, 30}}},
    {"leader:density=0.05", DType::kBf16, 130, 1, 0, {{7, 100}, {3, 30}}},
    {"dgc:density=0.1,index=packed,momentum=0.5,clip=4",
     DType::kF32,
     100,
     1,
     0,
     {{7, 70}, {3, 30}}},
};

void print_hex(std::ostream& out, const void* data, uint64_t bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  for (uint64_t i = 0; i < bytes; ++i) {
    const uint8_t byte = static_cast<const uint8_t*>(data)[i];
    out << kHex[byte >> 4] << kHex[byte & 15];
  }
  out << "\n";
}

void print_bytes(std::ostream& out, const char* who, const Plane& plane, const void* data,
                 uint64_t bytes) {
  out << "    " << who << " " << op_name(plane.op) << " " << plane.lanes << " ";
  print_hex(out, data, bytes);
}

void print_plane(std::ostream& out, const char* who, const Plane& plane) {
  print_bytes(out, who, plane, plane.data, op_bytes(plane.op, plane.lanes));
}

// Adds b to a, prints the sum and hands it to both.
void print_sum(std::ostream& out, Plane& a, Plane& b) {
  const uint64_t bytes = op_sum_bytes(a.op, a.lanes);
  if (!is_table_sum(a.op)) {
    EXPECT_TRUE(fold(a, b));
    std::memcpy(b.data, a.data, bytes);
    return print_plane(out, "=", a);
  }
  std::memset(a.sums, 0, bytes);
  const uint8_t* indices[] = {static_cast<const uint8_t*>(a.data),
                              static_cast<const uint8_t*>(b.data)};
  fold_tables(a.op, a.sums, indices, 2, a.table, a.lanes);
  std::memcpy(b.sums, a.sums, bytes);
  print_bytes(out, "=", a, a.sums, bytes);
}

Layout layout_of(const RoundsCase& c, uint32_t worker) {
  Layout layout;
  layout.dtype = c.dtype;
  layout.count = c.count;
  layout.world = 2;
  layout.worker = worker;
  layout.seed = 20;
  layout.scale = c.scale;
  layout.first_step = c.first_step;
  layout.segments = c.segments;
  layout.network.latency_us = c.latency_us;
  return layout;
}

void print_title(std::ostream& out, const RoundsCase& c) {
  out << c.spec << " " << dtype_name(c.dtype) << " " << c.count;
  if (c.scale != 1) out << " scale " << c.scale;
  if (c.first_step != 0) out << " from step " << c.first_step;
  if (c.latency_us != NetworkHint{}.latency_us) out << " latency " << c.latency_us;
  for (const Segment& segment : c.segments)
    out << " segment " << segment.id << " of " << segment.count
        << (segment.rows == 0 ? "" : " in rows " + std::to_string(segment.rows));
  out << "\n";
}

// Two steps of two workers: every plane as it leaves each of them, and the sum that comes back;
// then the states of a's segments, if there are any.
std::string trace(const RoundsCase& c) {
  std::ostringstream out;
  auto a = create_codec(*CodecSpec::parse(c.spec), layout_of(c, 0));
  auto b = create_codec(*CodecSpec::parse(c.spec), layout_of(c, 1));
  print_title(out, c);
  for (uint64_t step = 0; step < 2; ++step) {
    NpyArray x = gradient(c.dtype, c.count, 10 + step), y = gradient(c.dtype, c.count, 20 + step);
    out << "  step " << step << " plan " << std::hex << (*a)->fingerprint() << std::dec << "\n";
    EXPECT_TRUE((*a)->begin(x.data()) && (*b)->begin(y.data()));
    Round round, other;
    for (int number = 0; *(*a)->next_round(round); ++number) {
      EXPECT_TRUE(*(*b)->next_round(other));
      out << "   round " << number << "\n";
      for (std::size_t p = 0; p < round.size; ++p) {
        print_plane(out, "a", round.planes[p]);
        print_plane(out, "b", other.planes[p]);
        print_sum(out, round.planes[p], other.planes[p]);
      }
    }
    EXPECT_FALSE(*(*b)->next_round(other));
    EXPECT_TRUE((*a)->finish(x.data()) && (*b)->finish(y.data()));
    EXPECT_EQ(x.storage, y.storage);
  }
  for (std::size_t s = 0; s < c.segments.size(); ++s) {
    const Bytes state = *(*a)->save_segment(s);
    out << "  state " << s << " ";
    print_hex(out, state.data(), state.size());
  }
  return out.str();
}

// --- Writing it all

void regenerate_accept() {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const std::string codec : {"dense", "exact"}) {
      for (const bool with_nan : {false, true}) {
        if (with_nan && dtype != DType::kF32) continue;
        const std::string name = codec + "_" + dtype_name(dtype) + (with_nan ? "_nan" : "");
        const auto arrays = three(dtype, with_nan);
        const SnapshotPlan plan = plan_for(arrays, codec.c_str());
        const fs::path path = kGolden / "accept" / (name + ".add");
        write_bytes(path, serialize_add_file(pack_sum(plan, arrays)));
        if (!write_npy((kGolden / "accept" / (name + ".npy")).string(), *unpack(path)))
          std::abort();
        for (std::size_t i = 0; i < 3 && name == "exact_f32"; ++i) {
          write_bytes(kGolden / "parts" / ("exact_f32_" + std::to_string(i) + ".add"),
                      serialize_add_file(pack(plan, arrays[i])));
        }
      }
    }
  }
}

void regenerate_reject() {
  const auto arrays = three(DType::kF32, false);
  const SnapshotPlan plan = plan_for(arrays, "exact");
  const auto put = [](const std::string& name, const Bytes& bytes) {
    write_bytes(kGolden / "reject" / (name + ".add"), bytes);
  };
  const auto put_bytes = [&](const std::string& name, const std::function<void(Bytes&)>& change) {
    Bytes bytes = serialize_add_file(pack_sum(plan, arrays));
    change(bytes);
    put(name, bytes);
  };
  const auto put_file = [&](const std::string& name, const std::function<void(AddFile&)>& change) {
    AddFile file = pack_sum(plan, arrays);
    change(file);
    put(name, serialize_add_file(file));
  };
  put_bytes("malformed-truncated", [](Bytes& bytes) { bytes.resize(bytes.size() - 100); });
  put_bytes("malformed-magic", [](Bytes& bytes) { bytes[1] = 'S'; });
  put_bytes("malformed-version", [](Bytes& bytes) { bytes[8] = 2; });
  put_bytes("malformed-checksum", [](Bytes& bytes) { bytes[bytes.size() / 2] ^= 1; });
  put_bytes("malformed-trailing", [](Bytes& bytes) { bytes.push_back(0); });
  put_file("malformed-plan_version", [](AddFile& file) { file.plan[0] = 9; });
  put_file("malformed-plan_shape", [&](AddFile& file) {
    SnapshotPlan impossible = plan;
    impossible.hashes = 4;
    impossible.cells = impossible.cells / 8 * 4;
    file.plan = impossible.serialize();
  });
  put_file("malformed-plan_overflow", [&](AddFile& file) {
    SnapshotPlan impossible = plan;
    impossible.starts = 1;
    impossible.table_rows = 1u << 28;
    impossible.chunks = 1u << 30;
    impossible.cells = uint64_t{1} << 61;
    impossible.cell_words = 8;
    impossible.top = impossible.quantum + 8 * 59 - 1;
    file.plan = impossible.serialize();
  });
  put_file("malformed-planes", [](AddFile& file) { file.planes.planes[1].lanes -= 1; });
  put_file("undecodable-cell", [](AddFile& file) { file.storage[1][5] += 1; });
  put_file("undecodable-index",
           [](AddFile& file) { file.storage[0][300 / 64] |= uint64_t{1} << 63; });
  const SnapshotPlan tight = plan_for({gradient(DType::kF32, 300, 1)}, "exact");
  std::vector<NpyArray> crowd;
  for (uint64_t seed = 1; seed <= 12; ++seed)
    crowd.push_back(gradient(DType::kF32, 300, seed));
  put("capacity-outgrown", serialize_add_file(pack_sum(tight, crowd)));
}

void regenerate() {
  regenerate_accept();
  regenerate_reject();
  std::ofstream out(kGolden / "rounds.txt");
  for (const RoundsCase& c : kRounds)
    out << trace(c);
}

// --- Checking it

TEST(Golden, AcceptedFilesDecodeToTheStoredSums) {
  const auto files = files_in("accept", ".add");
  EXPECT_EQ(files.size(), 8u);
  for (fs::path path : files) {
    const auto sum = unpack(path);
    ASSERT_TRUE(sum) << sum.error().message;
    const auto expected = read_npy(path.replace_extension(".npy").string());
    ASSERT_TRUE(expected) << expected.error().message;
    EXPECT_EQ(sum->dtype, expected->dtype) << path;
    EXPECT_EQ(sum->shape, expected->shape) << path;
    EXPECT_EQ(0, std::memcmp(sum->data(), expected->data(), sum->count * dtype_bytes(sum->dtype)))
        << path;
  }
}

TEST(Golden, AcceptedFilesAreWrittenBackByteForByte) {
  for (const fs::path& path : files_in("accept", ".add")) {
    const Bytes bytes = read_bytes(path);
    const auto file = parse_add_file(bytes);
    ASSERT_TRUE(file) << path;
    EXPECT_EQ(file->contributors, 3u) << path;
    EXPECT_EQ(serialize_add_file(*file), bytes) << path;
  }
}

TEST(Golden, PartsAddUpToTheStoredSumInAnyOrder) {
  const Bytes expected = read_bytes(kGolden / "accept" / "exact_f32.add");
  for (const auto& order : {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{1, 2, 0}}) {
    const auto part = [](int i) {
      return read_add_file(
          (kGolden / "parts" / ("exact_f32_" + std::to_string(i) + ".add")).string());
    };
    auto sum = part(order[0]);
    ASSERT_TRUE(sum) << sum.error().message;
    for (const int i : {order[1], order[2]}) {
      const auto next = part(i);
      ASSERT_TRUE(next);
      ASSERT_TRUE(fold_files(*sum, *next));
    }
    EXPECT_EQ(serialize_add_file(*sum), expected);
  }
}

// Encoding is part of the format too: today's encoder writes the stored bytes.
TEST(Golden, EncodersStillWriteTheStoredFiles) {
  const auto arrays = three(DType::kF32, false);
  const SnapshotPlan plan = plan_for(arrays, "exact");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(serialize_add_file(pack(plan, arrays[i])),
              read_bytes(kGolden / "parts" / ("exact_f32_" + std::to_string(i) + ".add")));
  }
}

TEST(Golden, RejectedFilesGiveTheErrorInTheirName) {
  const auto files = files_in("reject", ".add");
  EXPECT_EQ(files.size(), 13u);
  for (const fs::path& path : files) {
    const std::string name = path.stem().string();
    const auto sum = unpack(path);
    ASSERT_FALSE(sum) << path;
    EXPECT_EQ(errc_name(sum.error().code), name.substr(0, name.find('-')))
        << path << ": " << sum.error().message;
  }
}

TEST(Golden, CodecsPutTheStoredPlanesOnTheWire) {
  const Bytes stored = read_bytes(kGolden / "rounds.txt");
  std::istringstream expected(std::string(stored.begin(), stored.end()));
  std::string all;
  for (const RoundsCase& c : kRounds)
    all += trace(c);
  std::istringstream actual(all);
  std::string actual_line, expected_line, where;
  while (std::getline(actual, actual_line)) {
    ASSERT_TRUE(std::getline(expected, expected_line)) << "rounds.txt ends after " << where;
    if (actual_line[0] != ' ') where = actual_line;
    ASSERT_EQ(actual_line, expected_line) << "in " << where;
  }
  EXPECT_FALSE(std::getline(expected, expected_line)) << "rounds.txt goes on: " << expected_line;
}

}  // namespace
}  // namespace addend

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::string(argv[1]) == "--regenerate") {
    addend::regenerate();
    std::cout << "wrote " << addend::kGolden << "\n";
    return 0;
  }
  return RUN_ALL_TESTS();
}
