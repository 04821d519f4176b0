// SPDX-License-Identifier: Apache-2.0
// Any bytes from another worker of a mesh: frames made from the input, right in what it asks for to
// be right, or bytes as they are. Rounds end with sums or with an error, memory beside the planes
// stays as it was, and a connection that carries nonsense breaks the mesh.
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include <sys/socket.h>

#include "fuzz/input.h"
#include "reduce/mesh/mesh.h"

using addend::Op;
using addend::Round;
using addend::fuzz::Input;
using addend::fuzz::require;
using addend::mesh::Frame;
using addend::mesh::Kind;
using addend::mesh::Transfer;
using addend::mesh::Way;

namespace {

constexpr uint64_t kLanes[] = {6, 100, 33};
constexpr Op kOps[] = {Op::kOrU64, Op::kSumI32, Op::kTableSumU8};
constexpr uint8_t kBeside = 0xA5;
constexpr std::size_t kRounds = std::size(kOps);

constexpr uint64_t kBounds[] = {1, 3, 6};

struct Memory {
  Memory(std::size_t i, bool bounded)
      : lanes(kLanes[i]), data(lanes * 8 + 64, kBeside), sums(data) {
    std::memset(data.data(), 1, addend::op_bytes(kOps[i], lanes));
    lend(i, bounded);
  }
  void lend(std::size_t i, bool bounded) {
    round.clear();
    round.add({kOps[i], lanes, data.data(), table.data(), sums.data()});
    if (bounded) round.planes[0].bounds = kBounds;
  }
  uint64_t lanes;
  std::array<uint8_t, 16> table{1, 2, 3};
  std::vector<uint8_t> data, sums;
  Round round;
};

// What the other worker sends: a byte of flags before each message.
std::vector<uint8_t> messages(Input& input, uint64_t exchange_bytes, bool bounded) {
  std::vector<uint8_t> bytes;
  while (!input.empty() && bytes.size() < 1 << 16) {
    const auto flags = input.take<uint8_t>();
    Frame frame;
    uint64_t lanes = 0;
    const auto round = input.take<uint8_t>();
    if ((flags & 1) != 0 && round < kRounds) {  // what our own round would send
      Memory memory(round, bounded);
      Transfer transfer;
      const Way way = addend::mesh::choose_way(memory.round, exchange_bytes, 2);
      require(bool(transfer.begin(round, memory.round, way, 2, 1)));
      addend::mesh::Parts parts;
      const Kind kind = (flags & 2) != 0 ? Kind::kSums : Kind::kShare;
      transfer.lay_out(kind, 1, 0, parts);
      lanes = parts.left();
      frame = transfer.frame(kind, lanes);
      if ((flags & 4) != 0) frame.shape ^= 1;
      if ((flags & 8) != 0) frame.claims[0] = 7;
      if ((flags & 16) != 0) frame.kind = static_cast<Kind>(input.take<uint8_t>());
      if ((flags & 32) != 0) frame.round = input.take<uint64_t>();
      if ((flags & 64) != 0) frame.length = lanes = input.take<uint16_t>();
    } else {
      input.cycle(&frame, sizeof(frame));
    }
    const auto* begin = reinterpret_cast<const uint8_t*>(&frame);
    bytes.insert(bytes.end(), begin, begin + sizeof(frame));
    bytes.resize(bytes.size() + lanes);
    input.cycle(bytes.data() + bytes.size() - lanes, lanes);
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto mode = input.take<uint8_t>();
  const uint64_t exchange_bytes = mode % 2 == 0 ? uint64_t{1} << 20 : 0;
  const bool bounded = (mode & 2) != 0;
  const std::vector<uint8_t> bytes = messages(input, exchange_bytes, bounded);
  int ends[2];
  require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  addend::net::Descriptor other(ends[1]);
  const ssize_t sent = send(other.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  require(sent >= 0 || bytes.empty());
  shutdown(other.get(), SHUT_WR);  // so that nobody waits for more
  std::vector<addend::net::Descriptor> sockets(2);
  sockets[1] = addend::net::Descriptor(ends[0]);
  auto reducer = *addend::mesh::MeshReducer::create(std::move(sockets), {0, exchange_bytes});
  std::vector<Memory> memory{Memory(0, bounded), Memory(1, bounded), Memory(2, bounded)};
  std::vector<uint64_t> numbers;
  for (std::size_t i = 0; i < kRounds; ++i) {
    memory[i].lend(i, bounded);
    const auto number = reducer->start(memory[i].round);
    if (number) numbers.push_back(*number);
  }
  const auto far = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (const uint64_t number : numbers) {
    const auto done = reducer->wait(number, far);
    require(!done || *done);
    require(done || done.error().code != addend::Errc::kTimeout);
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    require(memory[i].data[memory[i].data.size() - 1] == kBeside);
    require(memory[i].data[addend::op_bytes(kOps[i], memory[i].lanes)] == kBeside);
    require(memory[i].sums[addend::op_sum_bytes(kOps[i], memory[i].lanes)] == kBeside);
  }
  return 0;
}
