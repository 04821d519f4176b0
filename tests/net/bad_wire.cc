// SPDX-License-Identifier: Apache-2.0
// A long and bad wire: pairs of TUN devices in network namespaces, and every packet that goes into
// one comes out of the other after a delay, unless it is lost. Where the kernel can, datagrams that
// were sent together pass as one super-packet, or this program would be the slowest part of the
// path; faults are drawn for each of them all the same.
//
//   bad_wire [--delay-us N] [--loss-ppm N] [--duplicate-ppm N] [--swap-ppm N] [--seed N]
//            SPACE/DEVICE:SPACE/DEVICE ...
//
// Says "ready" when the devices are there; they go when it ends. Only UDP is lost, doubled and
// swapped (held back by a quarter of the delay): the control plane is not what is measured.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <queue>
#include <string>
#include <vector>

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "wire/hash.h"

namespace {

using Clock = std::chrono::steady_clock;

// Of Linux 6.2: TUN_F_USO4 and TUN_F_USO6, which go together, and VIRTIO_NET_HDR_GSO_UDP_L4.
constexpr unsigned kSuperPackets = 0x20 | 0x40;
constexpr uint8_t kSuperPacket = 5;

// virtio_net_hdr, whose header is not C++.
struct KernelHeader {
  uint8_t flags, super;
  uint16_t head_bytes, segment_bytes, sum_start, sum_offset;
};

struct Faults {
  std::chrono::nanoseconds delay{0};
  uint32_t loss_ppm = 0, duplicate_ppm = 0, swap_ppm = 0;
  uint64_t seed = 1;
};

struct Packet {
  Clock::time_point due;
  uint64_t order;
  int to;
  std::vector<uint8_t> bytes;
  bool operator>(const Packet& other) const {
    return due != other.due ? due > other.due : order > other.order;
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::perror(("bad_wire: " + what).c_str());
  std::exit(1);
}

// "SPACE/DEVICE". The device belongs to the namespace, the descriptor to us.
int open_device(const std::string& place) {
  const std::size_t slash = place.find('/');
  if (slash == std::string::npos) {
    std::fprintf(stderr, "bad_wire: '%s' is no SPACE/DEVICE\n", place.c_str());
    std::exit(2);
  }
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const std::string path = "/run/netns/" + place.substr(0, slash);
  const int space = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || space < 0 || setns(space, CLONE_NEWNET) != 0) fail(path);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  std::snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", place.c_str() + slash + 1);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) fail(place);
  // Without super-packets (before Linux 6.2) the kernel splits them.
  if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | kSuperPackets) != 0 &&
      ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM) != 0)
    fail("offloads of " + place);
  if (setns(home, CLONE_NEWNET) != 0) fail("going home");
  close(space);
  close(home);
  return device;
}

uint16_t word(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

void put_word(uint8_t* at, uint32_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

// The sum of 16-bit words (RFC 1624) where one of them has become another.
uint32_t changed_sum(uint32_t sum, uint16_t old_word, uint16_t new_word) {
  sum += (old_word ^ 0xffffu) + new_word;
  sum = (sum & 0xffff) + (sum >> 16);
  return (sum & 0xffff) + (sum >> 16);
}

// UDP datagrams as a device hands them over: the kernel's header, that of IP, that of UDP with the
// sum of its pseudo-header, and payloads, all but the last of one length.
class Datagrams {
 public:
  explicit Datagrams(const std::vector<uint8_t>& packet) : packet_(packet) {
    constexpr std::size_t kKernel = sizeof(KernelHeader);
    if (packet.size() < kKernel + 28) return;
    const bool v4 = packet[kKernel] >> 4 == 4;
    udp_ = kKernel + (v4 ? 20 : 40);
    if (packet[kKernel + (v4 ? 9 : 6)] != IPPROTO_UDP || packet.size() < udp_ + 8) return;
    KernelHeader header;
    std::memcpy(&header, packet.data(), sizeof(header));
    const std::size_t payload = packet.size() - udp_ - 8;
    segment_ =
        header.super == kSuperPacket ? header.segment_bytes : std::max<std::size_t>(payload, 1);
    count_ = std::max<std::size_t>((payload + segment_ - 1) / segment_, 1);
  }

  /// 0: it is no UDP.
  std::size_t count() const { return count_; }

  /// Some of them as a packet of their own.
  std::vector<uint8_t> cut(std::size_t first, std::size_t count) const {
    if (count == count_) return packet_;
    const auto head = packet_.begin() + static_cast<std::ptrdiff_t>(udp_) + 8;
    std::vector<uint8_t> made(packet_.begin(), head);
    const std::size_t payload = packet_.size() - made.size();
    made.insert(made.end(), head + static_cast<std::ptrdiff_t>(first * segment_),
                head + static_cast<std::ptrdiff_t>(std::min((first + count) * segment_, payload)));
    if (count == 1) {
      KernelHeader header;
      std::memcpy(&header, made.data(), sizeof(header));
      header.super = 0;
      header.segment_bytes = 0;
      std::memcpy(made.data(), &header, sizeof(header));
    }
    uint8_t* ip = made.data() + sizeof(KernelHeader);
    uint8_t* udp = made.data() + udp_;
    const auto length = static_cast<uint16_t>(made.size() - udp_);
    put_word(udp + 6, changed_sum(word(udp + 6), word(udp + 4), length));
    put_word(udp + 4, length);
    if (ip[0] >> 4 == 4) {
      const auto all = static_cast<uint16_t>(length + 20);
      put_word(ip + 10, ~changed_sum(word(ip + 10) ^ 0xffffu, word(ip + 2), all));
      put_word(ip + 2, all);
    } else {
      put_word(ip + 4, length);
    }
    return made;
  }

 private:
  const std::vector<uint8_t>& packet_;
  std::size_t udp_ = 0, segment_ = 1, count_ = 0;
};

class BadWire {
 public:
  explicit BadWire(const Faults& faults) : faults_(faults) {}

  void add(const std::string& pair) {
    const std::size_t colon = pair.find(':');
    const int one = open_device(pair.substr(0, colon));
    const int other = open_device(colon == std::string::npos ? "" : pair.substr(colon + 1));
    ends_.push_back({one, POLLIN, 0});
    ends_.push_back({other, POLLIN, 0});
  }

  [[noreturn]] void run() {
    while (true) {
      timespec pause{3600, 0};
      if (!under_way_.empty()) {
        const auto left = std::max(under_way_.top().due - Clock::now(), Clock::duration::zero());
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
        pause = {ns / 1'000'000'000, ns % 1'000'000'000};
      }
      if (ppoll(ends_.data(), ends_.size(), &pause, nullptr) > 0) {
        for (std::size_t i = 0; i < ends_.size(); ++i) {
          if (ends_[i].revents != 0) take_all(i);
        }
      }
      deliver();
    }
  }

 private:
  bool happens(uint32_t ppm) {
    return ppm > 0 && addend_random(faults_.seed, draws_++) % 1'000'000 < ppm;
  }

  void take_all(std::size_t end) {
    std::array<uint8_t, sizeof(KernelHeader) + 65536> bytes;
    to_ = ends_[end ^ 1].fd;
    while (true) {
      const ssize_t length = read(ends_[end].fd, bytes.data(), bytes.size());
      if (length <= 0) return;
      take({bytes.data(), bytes.data() + length});
    }
  }

  void take(const std::vector<uint8_t>& packet) {
    const auto due = Clock::now() + faults_.delay;
    const Datagrams datagrams(packet);
    if (datagrams.count() == 0) return push(packet, due);
    std::size_t whole = 0;  // the first of those that go on together
    for (std::size_t i = 0; i < datagrams.count(); ++i) {
      const bool lost = happens(faults_.loss_ppm);
      if (!lost && happens(faults_.duplicate_ppm)) push(datagrams.cut(i, 1), due);
      const bool late = !lost && happens(faults_.swap_ppm);
      if (!lost && !late) continue;
      if (late) push(datagrams.cut(i, 1), due + faults_.delay / 4);
      if (i > whole) push(datagrams.cut(whole, i - whole), due);
      whole = i + 1;
    }
    if (whole < datagrams.count()) push(datagrams.cut(whole, datagrams.count() - whole), due);
  }

  void push(std::vector<uint8_t> bytes, Clock::time_point due) {
    under_way_.push({due, ++order_, to_, std::move(bytes)});
  }

  void deliver() {
    const auto now = Clock::now();
    while (!under_way_.empty() && under_way_.top().due <= now) {
      const Packet& packet = under_way_.top();
      // A device that is down or gone swallows it, as a cable would.
      if (write(packet.to, packet.bytes.data(), packet.bytes.size()) < 0) ++swallowed_;
      under_way_.pop();
    }
  }

  Faults faults_;
  std::vector<pollfd> ends_;  // in pairs
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> under_way_;
  int to_ = -1;  // where what is taken goes
  uint64_t draws_ = 0, order_ = 0, swallowed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Faults faults;
  int i = 1;
  for (; i + 1 < argc && std::strncmp(argv[i], "--", 2) == 0; i += 2) {
    const std::string name = argv[i];
    const auto value = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (name == "--delay-us") {
      faults.delay = std::chrono::microseconds(value);
    } else if (name == "--loss-ppm") {
      faults.loss_ppm = value;
    } else if (name == "--duplicate-ppm") {
      faults.duplicate_ppm = value;
    } else if (name == "--swap-ppm") {
      faults.swap_ppm = value;
    } else if (name == "--seed") {
      faults.seed = value;
    } else {
      std::fprintf(stderr, "bad_wire: no option %s\n", argv[i]);
      return 2;
    }
  }
  // The kernel may end a wait 50 us late otherwise, which is as much of a delay as of the shortest.
  prctl(PR_SET_TIMERSLACK, 1);
  BadWire wire(faults);
  for (; i < argc; ++i)
    wire.add(argv[i]);
  std::puts("ready");
  std::fflush(stdout);
  wire.run();
}
