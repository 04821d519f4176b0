// SPDX-License-Identifier: Apache-2.0
// A long and bad wire: pairs of TUN devices in network namespaces, and every packet that goes into
// one comes out of the other after a delay, unless it is lost. Devices have no offloads, so what
// arrives here is as long as the MTU at most.
//
//   bad_wire [--delay-us N] [--loss-ppm N] [--duplicate-ppm N] [--swap-ppm N] [--seed N]
//            SPACE/DEVICE:SPACE/DEVICE ...
//
// Says "ready" when the devices are there; they go when it ends. Only UDP is lost, doubled and
// swapped (held back by a quarter of the delay): the control plane is not what is measured.
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
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "wire/hash.h"

namespace {

using Clock = std::chrono::steady_clock;

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
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", place.c_str() + slash + 1);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) fail(place);
  if (setns(home, CLONE_NEWNET) != 0) fail("going home");
  close(space);
  close(home);
  return device;
}

bool is_udp(const std::vector<uint8_t>& packet) {
  if (packet.size() < 40) return packet.size() >= 20 && packet[0] >> 4 == 4 && packet[9] == 17;
  return packet[0] >> 4 == 4 ? packet[9] == 17 : packet[6] == 17;
}

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
    std::array<uint8_t, 65536> bytes;
    const int to = ends_[end ^ 1].fd;
    while (true) {
      const ssize_t length = read(ends_[end].fd, bytes.data(), bytes.size());
      if (length <= 0) return;
      Packet packet{
          Clock::now() + faults_.delay, ++order_, to, {bytes.data(), bytes.data() + length}};
      if (is_udp(packet.bytes)) {
        if (happens(faults_.loss_ppm)) continue;
        if (happens(faults_.duplicate_ppm)) under_way_.push(packet);
        if (happens(faults_.swap_ppm)) packet.due += faults_.delay / 4;
      }
      under_way_.push(std::move(packet));
    }
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
  BadWire wire(faults);
  for (; i < argc; ++i)
    wire.add(argv[i]);
  std::puts("ready");
  std::fflush(stdout);
  wire.run();
}
