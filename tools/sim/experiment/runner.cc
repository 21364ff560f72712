#include "tools/sim/experiment/runner.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bfio::sim {
namespace {

// Steps between two looks at whether to go on.
constexpr int64_t kStepsPerLook = 64;

}  // namespace

absl::StatusOr<std::vector<RunJson>> Runner::Run(const std::vector<PlannedRun>& runs) const {
  std::vector<RunJson> results(runs.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  absl::Status first_error;
  size_t done = 0;
  const auto run_one = [&](size_t i) -> absl::Status {
    const PlannedRun& planned = runs[i];
    absl::StatusOr<std::unique_ptr<Simulation>> simulation =
        Simulation::Create(planned.options, *planned.trace);
    if (!simulation.ok()) return simulation.status();
    absl::StatusOr<RunJson> run = (*simulation)
                                      ->Run(
                                          [&](int64_t steps) {
                                            if (steps % kStepsPerLook != 0) return true;
                                            if (go_on_ && !stop) {
                                              const std::lock_guard lock(mutex);
                                              if (!go_on_()) stop = true;
                                            }
                                            return !stop;
                                          },
                                          planned.tap);
    if (!run.ok()) return run.status();
    results[i] = *std::move(run);
    return absl::OkStatus();
  };
  const auto work = [&] {
    for (size_t i = next++; i < runs.size() && !stop; i = next++) {
      absl::Status status = run_one(i);
      const std::lock_guard lock(mutex);
      ++done;
      if (!status.ok()) {
        stop = true;
        if (first_error.ok()) {
          first_error = absl::Status(status.code(), absl::StrCat(runs[i].name, ": ", status.message()));
        }
      } else if (progress_) {
        progress_(static_cast<double>(done) / static_cast<double>(runs.size()), runs[i].name);
      }
    }
  };
  std::vector<std::thread> threads;
  const int32_t count =
      std::clamp<int32_t>(threads_, 1, std::max<int32_t>(1, static_cast<int32_t>(runs.size())));
  for (int32_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!first_error.ok()) return first_error;
  if (stop) return absl::CancelledError("stopped by a signal");
  return results;
}

}  // namespace bfio::sim
