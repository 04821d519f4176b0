// SPDX-License-Identifier: Apache-2.0
// A network for the driver's program without a network: frames in packets, through the kernel's
// test run, and what comes out of it, checked down to the checksums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <linux/bpf.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "dataplane/xdp/driver.h"

namespace addend::testing_support {

/// The program, loaded once a process; or why it cannot be.
inline Result<std::shared_ptr<dataplane::Driver>>& loaded_driver() {
  static auto loaded = []() -> Result<std::shared_ptr<dataplane::Driver>> {
    auto driver = dataplane::Driver::load("lo");
    if (!driver) return driver.error();
    return std::shared_ptr<dataplane::Driver>(*std::move(driver));
  }();
  return loaded;
}

/// Whether there is no excuse for a program that does not load: the build has one, the kernel is
/// recent enough, and the process is root with all capabilities that it takes, of this machine and
/// not of a user namespace.
inline bool must_load() {
  constexpr uint64_t kNeeded =
      uint64_t{1} << CAP_NET_ADMIN | uint64_t{1} << CAP_PERFMON | uint64_t{1} << CAP_BPF;
  uint64_t capabilities = 0, first_user = 0, outside = 1, users = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "CapEff:") status >> std::hex >> capabilities;
  }
  std::ifstream("/proc/self/uid_map") >> first_user >> outside >> users;
  utsname name{};
  uname(&name);
  return dataplane::check_kernel(name.release) && geteuid() == 0 &&
         (capabilities & kNeeded) == kNeeded && outside == 0 && users == 0xFFFFFFFF;
}

/// All workers are on one machine, at ports of their own; so is the server, on another.
class DriverWire {
 public:
  static constexpr uint16_t kServerPort = 7701;

  struct Outcome {
    enum class Kind : uint8_t { kPassed, kDropped, kToSender, kToAll, kWrong } kind = Kind::kWrong;
    std::vector<uint8_t> frame;  ///< that is sent
    std::string what;            ///< is wrong
  };

  DriverWire(std::shared_ptr<dataplane::Driver> driver, const net::Address& workers,
             const net::Address& server)
      : driver_(std::move(driver)), workers_(workers), server_(server) {
    v6_ = !IN6_IS_ADDR_V4MAPPED(&workers_.raw.sin6_addr);
  }

  dataplane::Driver& driver() { return *driver_; }

  /// What the program does with a datagram from a port of the workers' machine. Turns that it opens
  /// are as of `now_ns`.
  Outcome send(uint16_t port, std::span<const uint8_t> frame, uint64_t now_ns) {
    const uint64_t before_ns = clock_ns();
    const std::vector<uint8_t> packet = wrap(port, frame);
    std::vector<uint8_t> out(4096);
    uint32_t action = 0;
    if (!test_run(packet, out, action, 1, nullptr)) {
      return {Outcome::Kind::kWrong, {}, std::string("test run: ") + std::strerror(errno)};
    }
    if (frame.size() >= ADDEND_FRAME_HEADER_BYTES) {
      set_clock(addend_frame_read(frame.data()).epoch, before_ns, now_ns);
    }
    if (action == XDP_PASS || action == XDP_DROP) {
      if (action == XDP_PASS && out != packet) return {Outcome::Kind::kWrong, {}, "passed altered"};
      return {action == XDP_PASS ? Outcome::Kind::kPassed : Outcome::Kind::kDropped, {}, ""};
    }
    if (action != XDP_REDIRECT) {
      return {Outcome::Kind::kWrong, {}, "action " + std::to_string(action)};
    }
    return unwrap(port, packet, out);
  }

  /// Whether a packet, with all its headers, passes as it is.
  bool passes(const std::vector<uint8_t>& packet) const {
    std::vector<uint8_t> out(4096);
    uint32_t action = 0;
    return test_run(packet, out, action, 1, nullptr) && action == XDP_PASS && out == packet;
  }

  /// Nanoseconds a run, over `times` runs on the same packet; the last action. `program`: another
  /// one than the driver's, which calls it.
  double time_ns(uint16_t port, std::span<const uint8_t> frame, uint32_t times, uint32_t& action,
                 int program = -1) {
    const std::vector<uint8_t> packet = wrap(port, frame);
    std::vector<uint8_t> out(4096);
    uint32_t duration = 0;
    if (!test_run(packet, out, action, times, &duration, program)) return -1;
    return duration;
  }

  /// Nanoseconds a run of `program` on packets that are as in a driver, in pages that come back,
  /// and leave where it sends them; negative where the kernel cannot (before 5.18). What it writes
  /// to a packet may still be there in a later run.
  static double live_ns(std::span<const uint8_t> packet, uint32_t times, int program) {
    bpf_attr attr{};
    attr.test.prog_fd = static_cast<uint32_t>(program);
    attr.test.data_in = reinterpret_cast<uint64_t>(packet.data());
    attr.test.data_size_in = static_cast<uint32_t>(packet.size());
    attr.test.repeat = times;
    attr.test.flags = 1u << 1;  // BPF_F_TEST_XDP_LIVE_FRAMES, which older headers lack
    attr.test.batch_size = 32;  // so many, with a copy for each of 4 workers, fit a veth's ring
    if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attr, sizeof(attr)) != 0) return -1;
    return attr.test.duration;
  }

  std::vector<uint8_t> wrap(uint16_t port, std::span<const uint8_t> frame) const {
    std::vector<uint8_t> packet(v6_ ? 62 : 42);
    std::memcpy(packet.data(), kServerMac, 6);
    std::memcpy(packet.data() + 6, kWorkerMac, 6);
    put16(packet, 12, v6_ ? 0x86DD : 0x0800);
    const auto udp_bytes = static_cast<uint16_t>(8 + frame.size());
    if (v6_) {
      packet[14] = 0x60;
      put16(packet, 18, udp_bytes);
      packet[20] = 17;
      packet[21] = 3;
      std::memcpy(packet.data() + 22, &workers_.raw.sin6_addr, 16);
      std::memcpy(packet.data() + 38, &server_.raw.sin6_addr, 16);
    } else {
      packet[14] = 0x45;
      put16(packet, 16, static_cast<uint16_t>(20 + udp_bytes));
      put16(packet, 20, 0x4000);
      packet[22] = 3;
      packet[23] = 17;
      std::memcpy(packet.data() + 26, workers_.raw.sin6_addr.s6_addr + 12, 4);
      std::memcpy(packet.data() + 30, server_.raw.sin6_addr.s6_addr + 12, 4);
      put16(packet, 24, checksum(std::span(packet).subspan(14, 20), 0));
    }
    const std::size_t udp = packet.size() - 8;
    put16(packet, udp, port);
    put16(packet, udp + 2, kServerPort);
    put16(packet, udp + 4, udp_bytes);
    packet.insert(packet.end(), frame.begin(), frame.end());
    return packet;
  }

 private:
  static constexpr uint8_t kServerMac[6] = {2, 0, 0, 0, 0, 1}, kWorkerMac[6] = {2, 0, 0, 0, 0, 2};

  static void put16(std::vector<uint8_t>& bytes, std::size_t at, uint16_t value) {
    bytes[at] = static_cast<uint8_t>(value >> 8);
    bytes[at + 1] = static_cast<uint8_t>(value);
  }
  static uint16_t get16(std::span<const uint8_t> bytes, std::size_t at) {
    return static_cast<uint16_t>(bytes[at] << 8 | bytes[at + 1]);
  }
  // Of big endian 16-bit words; 0 over what carries the right one.
  static uint16_t checksum(std::span<const uint8_t> bytes, uint64_t sum) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      sum += i % 2 == 0 ? uint64_t{bytes[i]} << 8 : bytes[i];
    while (sum >> 16 != 0)
      sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<uint16_t>(~sum);
  }
  static uint64_t clock_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }

  // The system call itself: libbpf belongs to the loader.
  bool test_run(std::span<const uint8_t> in, std::vector<uint8_t>& out, uint32_t& action,
                uint32_t times, uint32_t* duration, int program = -1) const {
    bpf_attr attr{};
    attr.test.prog_fd = static_cast<uint32_t>(program < 0 ? driver_->program() : program);
    attr.test.data_in = reinterpret_cast<uint64_t>(in.data());
    attr.test.data_size_in = static_cast<uint32_t>(in.size());
    attr.test.data_out = reinterpret_cast<uint64_t>(out.data());
    attr.test.data_size_out = static_cast<uint32_t>(out.size());
    attr.test.repeat = times;
    if (syscall(SYS_bpf, BPF_PROG_TEST_RUN, &attr, sizeof(attr)) != 0) return false;
    action = attr.test.retval;
    out.resize(attr.test.data_size_out);
    if (duration != nullptr) *duration = attr.test.duration;
    return true;
  }

  // The program has the kernel's clock, the test its own.
  void set_clock(uint32_t epoch, uint64_t before_ns, uint64_t now_ns) {
    const dataplane::DriverMemory& memory = driver_->memory();
    for (uint32_t j = 0; j < ADDEND_XDP_JOBS; ++j) {
      const addend_xdp_job& job = memory.jobs[j];
      for (uint32_t i = 0; job.epoch == epoch && i < job.slots; ++i) {
        for (addend_xdp_bank& bank : memory.slots[job.first + i].banks) {
          if (bank.state == ADDEND_XDP_OPEN && bank.opened_ns >= before_ns) bank.opened_ns = now_ns;
        }
      }
    }
  }

  Outcome unwrap(uint16_t port, const std::vector<uint8_t>& in, std::vector<uint8_t>& out) const {
    const auto wrong = [](const char* what) { return Outcome{Outcome::Kind::kWrong, {}, what}; };
    const std::size_t ip = 14, udp = v6_ ? 54 : 34, frame = udp + 8;
    if (out.size() < frame) return wrong("short");
    const bool to_all = out[0] == 3;
    if (!to_all && std::memcmp(out.data(), kWorkerMac, 6) != 0) return wrong("destination");
    if (std::memcmp(out.data() + 6, kServerMac, 6) != 0) return wrong("source");
    const uint16_t udp_bytes = get16(out, udp + 4);
    const std::size_t end = udp + udp_bytes;
    if (out.size() != std::max<std::size_t>(end, 60)) return wrong("bytes");
    if (get16(out, udp) != kServerPort || get16(out, udp + 2) != port) return wrong("ports");
    const std::size_t address = v6_ ? 22 : 26, width = v6_ ? 16 : 4;
    if (std::memcmp(&in[address], &out[address + width], width) != 0 ||
        std::memcmp(&in[address + width], &out[address], width) != 0) {
      return wrong("addresses");
    }
    if (v6_) {
      if (get16(out, ip + 4) != udp_bytes) return wrong("IPv6 length");
      const auto pseudo =
          static_cast<uint16_t>(~checksum(std::span(out).subspan(address, 32), 17u + udp_bytes));
      if (checksum(std::span(out).subspan(udp, udp_bytes), pseudo) != 0) return wrong("checksum");
    } else {
      if (get16(out, ip + 2) != 20 + udp_bytes) return wrong("IPv4 length");
      if (checksum(std::span(out).subspan(ip, 20), 0) != 0) return wrong("IPv4 checksum");
    }
    return {to_all ? Outcome::Kind::kToAll : Outcome::Kind::kToSender,
            {out.begin() + static_cast<std::ptrdiff_t>(frame),
             out.begin() + static_cast<std::ptrdiff_t>(end)},
            ""};
  }

  std::shared_ptr<dataplane::Driver> driver_;
  net::Address workers_, server_;
  bool v6_ = false;
};

}  // namespace addend::testing_support
