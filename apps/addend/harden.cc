// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/harden.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace addend::cli {
namespace {

Error refused(const std::string& what) {
  return make_error(Errc::kIo, what + ": " + std::strerror(errno));
}

// What a running server needs: its sockets and the clock, memory, threads that wait and end.
constexpr int kAllowed[] = {
    SYS_accept4,
    SYS_accept,
    SYS_brk,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_clone,
    SYS_clone3,
    SYS_close,
    SYS_exit,
    SYS_exit_group,
    SYS_fcntl,
    SYS_futex,
    SYS_getpeername,
    SYS_getpid,
    SYS_getrandom,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_gettid,
    SYS_gettimeofday,
    SYS_ioctl,
    SYS_lseek,
    SYS_madvise,
    SYS_mmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_munmap,
    SYS_nanosleep,
    SYS_ppoll,
    SYS_pselect6,
    SYS_read,
    SYS_readv,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sched_getaffinity,
    SYS_sched_yield,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_set_robust_list,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_sigaltstack,
    SYS_tgkill,
    SYS_write,
    SYS_writev,
#ifdef SYS_poll
    SYS_poll,
#endif
#ifdef SYS_select
    SYS_select,
#endif
};

// And a leaf of a tree, to reach the next server.
constexpr int kToConnect[] = {SYS_bind, SYS_connect, SYS_eventfd2, SYS_socket};

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;
#endif

sock_filter statement(int code, uint32_t value) {
  return BPF_STMT(static_cast<uint16_t>(code), value);
}
sock_filter jump_if_equal(uint32_t value, uint8_t yes, uint8_t no) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no);
}

std::vector<sock_filter> make_filter(bool connects) {
  const sock_filter deny = statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  std::vector<sock_filter> filter = {
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      jump_if_equal(kArchitecture, 1, 0), deny,
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  const auto allow = [&](int call) {
    filter.push_back(jump_if_equal(static_cast<uint32_t>(call), 0, 1));
    filter.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  };
  for (const int call : kAllowed)
    allow(call);
  for (const int call : kToConnect) {
    if (connects) allow(call);
  }
  filter.push_back(deny);
  return filter;
}

}  // namespace

Status drop_privileges(const std::string& user) {
  if (!user.empty()) {
    errno = 0;
    const passwd* entry = getpwnam(user.c_str());  // at start only, with one thread
    if (entry == nullptr) {
      return make_error(Errc::kInvalidArgument, "there is no user '" + user + "'");
    }
    const uid_t uid = entry->pw_uid;
    const gid_t gid = entry->pw_gid;
    if (setgroups(0, nullptr) != 0 || setresgid(gid, gid, gid) != 0 ||
        setresuid(uid, uid, uid) != 0) {
      return refused("cannot become user '" + user + "'");
    }
  }
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_CORE, &none) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0 ||
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return refused("cannot give up privileges");
  }
  return {};
}

Status restrict_system_calls(bool connects) {
  std::vector<sock_filter> filter = make_filter(connects);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  // All threads at once; they were started before.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) {
    return refused("cannot restrict system calls");
  }
  return {};
}

}  // namespace addend::cli
