// SPDX-License-Identifier: Apache-2.0
#include "service/status.h"

#include <array>
#include <functional>

namespace addend::service {
namespace {

constexpr std::array<const char*, ADDEND_REFUSAL_COUNT> kRefusals = {
    "none", "truncated", "magic",        "kind",     "length", "op",  "epoch",
    "boot", "world",     "contributors", "slot",     "source", "tag", "rate",
    "turn", "duplicate", "late",         "mismatch", "ended"};

class Metrics {
 public:
  void describe(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP addend_") + name + " " + help + "\n# TYPE addend_" + name + " " +
             type + "\n";
  }
  void value(const char* name, const std::string& labels, double number) {
    std::string digits = std::to_string(number);
    if (number == static_cast<double>(static_cast<uint64_t>(number))) {
      digits = std::to_string(static_cast<uint64_t>(number));
    }
    text_ += std::string("addend_") + name + (labels.empty() ? "" : "{" + labels + "}") + " " +
             digits + "\n";
  }
  void single(const char* name, const char* type, const char* help, double number) {
    describe(name, type, help);
    value(name, "", number);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string labels_of(const JobView& view) {
  return "tenant=\"" + view.tenant + "\",job=\"" + view.name + "\"";
}

void add_job_metrics(Metrics& metrics, const ServerStatus& status) {
  struct Series {
    const char *name, *type, *help;
    std::function<double(const JobStatus&)> of;
  };
  const Series series[] = {
      {"job_workers", "gauge", "Workers the job is for.",
       [](const JobStatus& j) { return double(j.view.world); }},
      {"job_joined", "gauge", "Workers that are there.",
       [](const JobStatus& j) { return double(j.view.joined); }},
      {"job_slots", "gauge", "Slots of the job.",
       [](const JobStatus& j) { return double(j.view.slots); }},
      {"job_payload_bytes", "gauge", "Bytes of planes in a frame: what every path carries.",
       [](const JobStatus& j) { return double(j.view.payload_bytes); }},
      {"job_memory_bytes", "gauge", "Memory of the job's slots.",
       [](const JobStatus& j) { return double(j.memory_bytes); }},
      {"job_folded_total", "counter", "Contributions folded in this epoch.",
       [](const JobStatus& j) { return double(j.counters.folded); }},
      {"job_turns_total", "counter", "Turns that all workers contributed to.",
       [](const JobStatus& j) { return double(j.counters.complete); }},
      {"job_partial_turns_total", "counter", "Turns closed at a quorum.",
       [](const JobStatus& j) { return double(j.counters.partial); }},
      {"job_answers_total", "counter", "Results sent again because a worker asked again.",
       [](const JobStatus& j) { return double(j.counters.answered); }},
      {"job_retransmits_total", "counter", "Contributions folded not at their first try.",
       [](const JobStatus& j) { return double(j.counters.resent); }},
  };
  for (const Series& one : series) {
    metrics.describe(one.name, one.type, one.help);
    for (const JobStatus& job : status.jobs)
      metrics.value(one.name, labels_of(job.view), one.of(job));
  }
}

void add_refusals(Metrics& metrics, const ServerStatus& status) {
  metrics.describe("refused_total", "counter", "Frames that were not folded, by reason.");
  for (std::size_t i = 1; i < ADDEND_REFUSAL_COUNT; ++i)
    metrics.value("refused_total",
                  std::string("tenant=\"\",job=\"\",reason=\"") + kRefusals[i] + "\"",
                  double(status.refused[i]));
  for (const JobStatus& job : status.jobs) {
    for (std::size_t i = 1; i < ADDEND_REFUSAL_COUNT; ++i)
      metrics.value("refused_total", labels_of(job.view) + ",reason=\"" + kRefusals[i] + "\"",
                    double(job.counters.refused[i]));
  }
  metrics.describe("job_waits_for", "gauge", "1: the job waits for this worker.");
  for (const JobStatus& job : status.jobs) {
    for (uint32_t w = 0; w < job.view.world; ++w)
      metrics.value("job_waits_for", labels_of(job.view) + ",worker=\"" + std::to_string(w) + "\"",
                    double(job.waited_for() >> w & 1));
  }
  metrics.describe("job_last_total", "counter", "Turns that waited for this worker longest.");
  for (const JobStatus& job : status.jobs) {
    for (uint32_t w = 0; w < job.view.world; ++w)
      metrics.value("job_last_total", labels_of(job.view) + ",worker=\"" + std::to_string(w) + "\"",
                    double(job.counters.last[w]));
  }
}

void add_control_metrics(Metrics& metrics, const ControlStatus& status) {
  metrics.single("connections", "gauge", "Open control connections.", status.connections);
  metrics.single("handshakes", "gauge", "Control connections in the handshake.", status.handshakes);
  metrics.single("handshakes_dropped_total", "counter", "Handshakes without time or room.",
                 double(status.dropped));
  metrics.single("connections_refused_total", "counter", "Connections beyond a limit.",
                 double(status.refused));
  metrics.single("connections_cut_off_total", "counter", "Idle, or did not read what was sent.",
                 double(status.cut_off));
  metrics.single("accept_failures_total", "counter", "Times without a descriptor for a new one.",
                 double(status.accept_failures));
}

std::string refusals_json(const std::array<uint64_t, ADDEND_REFUSAL_COUNT>& refused) {
  std::string text = "{";
  for (std::size_t i = 1; i < refused.size(); ++i) {
    if (refused[i] == 0) continue;
    text += (text.size() > 1 ? ",\"" : "\"") + std::string(kRefusals[i]) +
            "\":" + std::to_string(refused[i]);
  }
  return text + "}";
}

std::string field(const char* name, uint64_t value) {
  return std::string("\"") + name + "\":" + std::to_string(value) + ",";
}

std::string job_json(const JobStatus& job) {
  std::string last, waits_for;
  for (uint32_t w = 0; w < job.view.world; ++w) {
    last += (w > 0 ? "," : "") + std::to_string(job.counters.last[w]);
    if ((job.waited_for() >> w & 1) != 0) {
      waits_for += (waits_for.empty() ? "" : ",") + std::to_string(w);
    }
  }
  return "{\"tenant\":\"" + job.view.tenant + "\",\"job\":\"" + job.view.name + "\"," +
         field("epoch", job.view.epoch) + field("world", job.view.world) +
         field("joined", job.view.joined) + field("slots", job.view.slots) +
         field("payload_bytes", job.view.payload_bytes) + field("memory_bytes", job.memory_bytes) +
         field("folded", job.counters.folded) + field("turns", job.counters.complete) +
         field("partial", job.counters.partial) + field("answered", job.counters.answered) +
         field("retransmits", job.counters.resent) +
         "\"draining\":" + (job.view.draining ? "true" : "false") + ",\"waits_for\":[" + waits_for +
         "],\"last\":[" + last + "],\"refused\":" + refusals_json(job.counters.refused) + "}";
}

}  // namespace

const char* refusal_name(addend_refusal refusal) { return kRefusals[refusal]; }

void add(ServerStatus& status, const DataPlaneStatus& plane) {
  status.packets += plane.packets;
  status.driver_packets += plane.driver_packets;
  status.bytes += plane.bytes;
  status.sent_packets += plane.sent_packets;
  status.sent_bytes += plane.sent_bytes;
  for (std::size_t i = 0; i < ADDEND_REFUSAL_COUNT; ++i)
    status.refused[i] += plane.refused[i];
  for (const EpochStatus& epoch : plane.epochs) {
    for (JobStatus& job : status.jobs) {
      if (job.view.epoch != epoch.epoch) continue;
      job.memory_bytes += epoch.memory_bytes;
      job.wait.join(epoch.wait);
      job.counters.folded += epoch.counters.folded;
      job.counters.complete += epoch.counters.complete;
      job.counters.partial += epoch.counters.partial;
      job.counters.answered += epoch.counters.answered;
      job.counters.resent += epoch.counters.resent;
      for (std::size_t i = 0; i < ADDEND_REFUSAL_COUNT; ++i)
        job.counters.refused[i] += epoch.counters.refused[i];
      for (std::size_t w = 0; w < ADDEND_MAX_JOB_WORKERS; ++w)
        job.counters.last[w] += epoch.counters.last[w];
    }
  }
}

std::string to_metrics(const ServerStatus& status) {
  Metrics metrics;
  metrics.single("boot_info", "gauge", "Number of this life of the server.", status.boot);
  metrics.single("uptime_seconds", "gauge", "Since the server started.", status.uptime_s);
  add_control_metrics(metrics, status.control);
  metrics.single("jobs", "gauge", "Jobs on this server.", double(status.jobs.size()));
  metrics.single("received_packets_total", "counter", "Datagrams received.",
                 double(status.packets));
  metrics.single("received_bytes_total", "counter", "Bytes received.", double(status.bytes));
  metrics.single("driver_packets_total", "counter",
                 "Of the datagrams received: folded, answered or refused by the XDP program.",
                 double(status.driver_packets));
  metrics.single("sent_packets_total", "counter", "Datagrams sent.", double(status.sent_packets));
  metrics.single("sent_bytes_total", "counter", "Bytes sent.", double(status.sent_bytes));
  metrics.single("send_dropped_total", "counter", "Super-packets that could not be sent.",
                 double(status.dropped));
  metrics.single("send_too_long_total", "counter", "Of them, longer than the path carries.",
                 double(status.too_long));
  add_job_metrics(metrics, status);
  add_refusals(metrics, status);
  return metrics.take();
}

std::string to_json(const ServerStatus& status) {
  std::string jobs;
  for (const JobStatus& job : status.jobs)
    jobs += (jobs.empty() ? "" : ",") + job_json(job);
  return "{" + field("boot", status.boot) +
         field("uptime_s", static_cast<uint64_t>(status.uptime_s)) +
         field("connections", status.control.connections) + field("threads", status.threads) +
         field("packets", status.packets) + field("bytes", status.bytes) +
         field("driver_packets", status.driver_packets) +
         field("sent_packets", status.sent_packets) + field("sent_bytes", status.sent_bytes) +
         field("dropped", status.dropped) + field("too_long", status.too_long) +
         "\"refused\":" + refusals_json(status.refused) + ",\"jobs\":[" + jobs + "]}";
}

}  // namespace addend::service
