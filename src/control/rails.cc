// SPDX-License-Identifier: Apache-2.0
// What a controller makes of simulated jobs on which its guard rails matter: progress per second
// against a job that goes dense throughout. bench/rails.py builds it once for each rail left
// out.
//
// A lossy step makes 1 - error of a dense one's progress; none, if it loses more than a cast does,
// in windows in which norms fall, a learning rate has just changed, something is not finite, or
// more than 20 gradients are owed: that such windows forbid it is what the rails take for granted.
// A change of plan takes two steps.
#include <cstdio>
#include <functional>

#include "control/simulated_training.h"

using namespace addend::control;

namespace {

struct Scenario {
  const char* name;
  const char* options;
  std::function<void(SimulatedTraining&)> begin;
  /// Before each window; whether it forbids what is lossy.
  std::function<bool(SimulatedTraining&, int)> next;
};

void link(SimulatedTraining& job, double gbit) {
  job.gbit = gbit;
  job.setup.bytes_per_s = gbit * 1.25e8;
}

double progress(const Scenario& scenario) {
  constexpr int kWindows = 120;
  constexpr double kCareful = 1e-3;
  const bool small = scenario.name[0] == 's' && scenario.name[1] == 'm';
  SimulatedTraining job(scenario.options, 4, small ? 1000 : 1 << 22);
  link(job, 1);
  scenario.begin(job);
  ControlledRun run(job);
  double done = 0, all = 0;
  std::vector<uint32_t> before = run.next.plan;
  for (int window = 0; window < kWindows; ++window) {
    const bool forbidden = scenario.next(job, window);
    const Decision now = run.next;
    double phi = 0;
    for (const uint32_t c : now.plan) {
      phi += forbidden && job.error[c] > kCareful ? 0 : 1 - job.error[c];
    }
    phi /= static_cast<double>(now.plan.size());
    const double own = now.steps - now.reference_steps;
    done += own * phi + now.reference_steps;
    all += now.steps;
    if (now.plan != before) job.seconds += 2 * job.step(now.plan);
    before = now.plan;
    run.go(1);
  }
  return done / job.seconds / (all / job.dense_seconds);
}

const auto kNothing = [](SimulatedTraining&) {};
const auto kSteady = [](SimulatedTraining&, int) { return false; };

const Scenario kScenarios[] = {
    {"steady, 1 Gbit/s", "", kNothing, kSteady},
    {"norms fall for 8 windows", "", kNothing,
     [](SimulatedTraining& job, int window) {
       if (window < 8) job.energy /= 4;
       return window < 8;
     }},
    {"norms never settle", "", kNothing,
     [](SimulatedTraining& job, int window) {
       job.energy *= window % 2 == 0 ? 10 : 0.1;
       return false;
     }},
    {"the learning rate falls every 20 windows", "", kNothing,
     [](SimulatedTraining& job, int window) {
       const bool falls = window % 20 == 19;
       if (falls) job.learning_rate /= 2;
       return window > 0 && window % 20 == 0;  // the window after
     }},
    {"codecs take 30 times what probes say", "",
     [](SimulatedTraining& job) { std::fill(job.excess.begin() + 1, job.excess.end(), 30); },
     kSteady},
    {"codecs cost a second that no lane shows", "", [](SimulatedTraining& job) { job.drag(1); },
     kSteady},
    {"a codec that is slow from window 60 on", "", kNothing,
     [](SimulatedTraining& job, int window) {
       if (window == 60) job.drag(1);
       return false;
     }},
    {"two codecs are the better one in turn", "",
     [](SimulatedTraining& job) {
       job.setup.candidates[kCast] = job.setup.candidates[kQuant];
       job.error[kCast] = job.error[kQuant];
     },
     [](SimulatedTraining& job, int window) {
       job.seconds_per_element[kCast] = window % 2 == 0 ? 0 : 4e-9;
       job.seconds_per_element[kQuant] = window % 2 == 0 ? 4e-9 : 0;
       return false;
     }},
    {"a quantiser loses 60 % in every third window", "", kNothing,
     [](SimulatedTraining& job, int window) {
       job.error[kQuant] = window % 3 == 2 ? 0.6 : 0.01;
       return false;
     }},
    {"selectors lose more the harder they select", "floor=fast",
     [](SimulatedTraining& job) {
       link(job, 0.1);
       job.error[kCast] = job.error[kQuant] = 0.5;
       job.kept = {1, 1, 1, 1, 0.99, 0.98, 0.97};
       job.error[kTop10] = 0.05, job.error[kTop20] = 0.3, job.error[kTop40] = 0.9;
     },
     kSteady},
    {"the hardest selector loses 60 % in every third window", "floor=fast",
     [](SimulatedTraining& job) {
       link(job, 0.1);
       job.error[kCast] = job.error[kQuant] = 0.5;
       job.kept = {1, 1, 1, 1, 0.99, 0.98, 0.97};
       job.error[kTop10] = 0.01, job.error[kTop20] = 0.02;
     },
     [](SimulatedTraining& job, int window) {
       job.error[kTop40] = window % 3 == 2 ? 0.6 : 0.03;
       job.kept[kTop40] = 1 - job.error[kTop40];
       return false;
     }},
    {"not finite in three of ten windows", "", kNothing,
     [](SimulatedTraining& job, int window) {
       const bool before = job.nonfinite > 0;
       job.nonfinite = window % 10 >= 7 ? 1 : 0;
       return before;
     }},
    {"30 gradients are owed for 20 windows", "", kNothing,
     [](SimulatedTraining& job, int window) {
       const bool before = job.residual > 20;
       job.residual = window >= 40 && window < 60 ? 30 : 0;
       return before;
     }},
    {"small buckets whose codecs cost more than probes say", "",
     [](SimulatedTraining& job) {
       link(job, 0.001);
       job.drag(0.02);
     },
     kSteady},
    {"twice the ranks from window 60 on, and codecs slow", "", kNothing,
     [](SimulatedTraining& job, int window) {
       if (window == 60) {
         job.setup.world = 8;
         std::fill(job.excess.begin() + 1, job.excess.end(), 30);
       }
       return false;
     }},
    {"links of 10, 0.1 and 10 Gbit/s", "", [](SimulatedTraining& job) { link(job, 10); },
     [](SimulatedTraining& job, int window) {
       job.gbit = window >= 40 && window < 80 ? 0.1 : 10;
       return false;
     }},
};

}  // namespace

int main() {
  for (const Scenario& one : kScenarios)
    std::printf("%s\t%.6f\n", one.name, progress(one));
  return 0;
}
