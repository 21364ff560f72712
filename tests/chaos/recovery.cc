#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bfio/v1/admin.grpc.pb.h"
#include "common/base/clock.h"
#include "tests/chaos/chaos_group.h"
#include "tests/chaos/runs.h"

namespace bfio::chaos {
namespace {

constexpr int kRecoverySlots = 24;
constexpr absl::Duration kAllowance = absl::Milliseconds(300);
constexpr absl::Duration kPatience = absl::Seconds(60);

// The group's steps as the admin API streams them, with the time of arrival of each. Reconnects when the
// router has been restarted. Threads: one of its own; any thread may call the methods.
class StepWatch {
 public:
  explicit StepWatch(const std::string& admin_address)
      : stub_(v1::Admin::NewStub(grpc::CreateChannel(admin_address, grpc::InsecureChannelCredentials()))),
        thread_([this] { Run(); }) {}
  ~StepWatch() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    thread_.join();
  }

  // The epoch of the last step seen.
  uint64_t epoch() const {
    std::lock_guard lock(mutex_);
    return epoch_;
  }
  // Waits for the first step of an epoch above `epoch` with `ranks` ranks; returns when it arrived.
  std::optional<absl::Time> AwaitEpochAfter(uint64_t epoch, int ranks, absl::Duration timeout) const {
    const absl::Time deadline = MonotonicNow() + timeout;
    do {
      {
        std::lock_guard lock(mutex_);
        if (epoch_ > epoch && ranks_ == ranks) return epoch_began_;
      }
      absl::SleepFor(absl::Milliseconds(1));
    } while (MonotonicNow() < deadline);
    return std::nullopt;
  }
  // The longest time between two steps since the last call.
  absl::Duration TakeLongestPause() {
    std::lock_guard lock(mutex_);
    return std::max(std::exchange(longest_, absl::ZeroDuration()), MonotonicNow() - last_step_);
  }

 private:
  void Run() {
    for (;;) {
      grpc::ClientContext* context = nullptr;
      {
        std::lock_guard lock(mutex_);
        if (stop_) return;
        context_ = std::make_unique<grpc::ClientContext>();
        context = context_.get();
      }
      const auto reader = stub_->WatchSteps(context, v1::WatchStepsRequest());
      v1::StepSummary step;
      while (reader->Read(&step)) {
        const absl::Time now = MonotonicNow();
        std::lock_guard lock(mutex_);
        if (last_step_ != absl::InfinitePast()) longest_ = std::max(longest_, now - last_step_);
        last_step_ = now;
        if (step.epoch() == epoch_) continue;
        epoch_ = step.epoch();
        ranks_ = step.load_tokens_size();
        epoch_began_ = now;
      }
      reader->Finish();
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  const std::unique_ptr<v1::Admin::Stub> stub_;
  mutable std::mutex mutex_;
  std::unique_ptr<grpc::ClientContext> context_;
  bool stop_ = false;
  uint64_t epoch_ = 0;
  int ranks_ = 0;
  absl::Time epoch_began_ = absl::InfinitePast(), last_step_ = absl::InfinitePast();
  absl::Duration longest_;
  std::thread thread_;
};

class Measurement {
 public:
  explicit Measurement(std::string what) : what_(std::move(what)) {}
  void Add(double value) { values_.push_back(value); }
  double Median() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
  void Print(int digits) const {
    if (values_.empty()) return;
    absl::PrintF("%-60s median %.*f, worst %.*f, n %d\n", what_, digits, Median(), digits,
                 *std::max_element(values_.begin(), values_.end()), values_.size());
  }

 private:
  const std::string what_;
  std::vector<double> values_;
};

class Recovery {
 public:
  Recovery(const RecoveryOptions& options, const Means& means)
      : options_(options), group_(OptionsOf(options), means), watch_(group_.admin_address()) {
    load_ = std::make_unique<testing::Process>(
        "bfio_loadgen",
        std::vector<std::string>{absl::StrCat("--target=", group_.address()), "--arrival=closed",
                                 absl::StrCat("--concurrency=", options.workers * kRecoverySlots * 3 / 2),
                                 "--requests=100000000", "--profile=conversation"});
  }

  bool Ready() { return group_.WaitServing(options_.workers, kPatience); }

  // Removes one worker with `signal` and lets it return. False: the group did not continue.
  bool Once(int worker, int signal, Measurement& first_step, Measurement& pause, Measurement& ratio) {
    absl::SleepFor(absl::Seconds(1));
    const double before = TokensPerSecond();
    const uint64_t epoch = watch_.epoch();
    const absl::Time begin = MonotonicNow();
    group_.worker(worker).Signal(signal);
    const std::optional<absl::Time> step = watch_.AwaitEpochAfter(epoch, options_.workers - 1, kPatience);
    if (!step) return false;
    first_step.Add(absl::ToDoubleMilliseconds(*step - begin));
    absl::SleepFor(absl::Seconds(1));
    ratio.Add(TokensPerSecond() / before);
    const uint64_t without = watch_.epoch();
    watch_.TakeLongestPause();
    if (signal == SIGKILL) {
      group_.worker(worker).Wait(absl::Seconds(10));
      group_.StartWorker(worker);
    } else {
      group_.worker(worker).Signal(SIGCONT);
    }
    if (!watch_.AwaitEpochAfter(without, options_.workers, kPatience)) return false;
    absl::SleepFor(absl::Milliseconds(500));
    pause.Add(absl::ToDoubleMilliseconds(watch_.TakeLongestPause()));
    return true;
  }

 private:
  static GroupOptions OptionsOf(const RecoveryOptions& options) {
    return {.workers = options.workers,
            .router_flags = {absl::StrCat("--step_timeout=", absl::FormatDuration(options.step_timeout))},
            .worker_flags = {"--c=0.03", "--tl=0", absl::StrCat("--slots=", kRecoverySlots)}};
  }

  double TokensPerSecond() {
    const auto tokens = [&] {
      const auto state = group_.State();
      return state.ok() ? static_cast<double>(state->steps().generated_tokens()) : 0;
    };
    const absl::Time begin = MonotonicNow();
    const double first = tokens();
    absl::SleepFor(options_.measure);
    return (tokens() - first) / absl::ToDoubleSeconds(MonotonicNow() - begin);
  }

  const RecoveryOptions options_;
  ChaosGroup group_;
  StepWatch watch_;
  std::unique_ptr<testing::Process> load_;
};

}  // namespace

int MeasureRecovery(const RecoveryOptions& options) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Means means;  // plain loopback
  Recovery recovery(options, means);
  if (!recovery.Ready()) {
    std::fprintf(stderr, "the group did not start\n");
    return 2;
  }
  int code = 0;
  struct Case {
    const char* name;
    int signal;
    absl::Duration bound;
  };
  for (const Case& kind :
       {Case{"kill -9", SIGKILL, kAllowance}, Case{"SIGSTOP", SIGSTOP, options.step_timeout + kAllowance}}) {
    Measurement first(absl::StrCat(kind.name, " to the first step without it, ms"));
    Measurement pause("  it comes back: longest time between two steps, ms");
    Measurement ratio(absl::StrFormat("  tokens/s without it, against before (%.3f is all that is left)",
                                      1 - 1.0 / options.workers));
    for (int i = 0; i < options.repeats; ++i) {
      // Each worker in turn, so that rank 0, the hub of the barrier, is among them.
      if (recovery.Once(i % options.workers, kind.signal, first, pause, ratio)) continue;
      absl::PrintF("%s of worker %d: the group did not go on\n", kind.name, i % options.workers);
      return 1;
    }
    first.Print(0);
    ratio.Print(3);
    pause.Print(0);
    if (first.Median() <= absl::ToDoubleMilliseconds(kind.bound)) continue;
    absl::PrintF("VIOLATION  more than %s\n", absl::FormatDuration(kind.bound));
    code = 1;
  }
  return code;
}

}  // namespace bfio::chaos
