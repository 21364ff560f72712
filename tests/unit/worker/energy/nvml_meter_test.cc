// The NVML meter through the dynamic linker against a fake library, the energy monitor over it, and the split
// of a window's energy against a device that follows the power model.
#include "worker/energy/nvml_meter.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/rng.h"
#include "tools/sim/run/statistics.h"
#include "worker/energy/energy_monitor.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

class NvmlMeterTest : public ::testing::Test {
 protected:
  ~NvmlMeterTest() override { Set({}); }

  static void Set(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const char* name : {"INIT", "ENERGY_MJ", "POWER_MW", "INSTANT_MW", "WATTS"}) {
      unsetenv(absl::StrCat("FAKE_NVML_", name).c_str());
    }
    for (const auto& [name, value] : values) setenv(absl::StrCat("FAKE_NVML_", name).c_str(), value, 1);
  }

  static std::unique_ptr<EnergyMeter> Make(absl::string_view device = "0") {
    auto meter = MakeNvmlMeter(device);
    EXPECT_TRUE(meter.ok()) << meter.status()
                            << " (LD_LIBRARY_PATH must lead to the fake library: run by ctest)";
    return meter.ok() ? *std::move(meter) : nullptr;
  }
};

TEST_F(NvmlMeterTest, ReadsTheCounterOfTheNamedDevice) {
  Set({{"ENERGY_MJ", "1500"}});
  for (const char* name : {"0", "0000:17:00.0"}) {
    const auto meter = Make(name);
    ASSERT_NE(meter, nullptr);
    EXPECT_EQ(meter->device(), "GPU-fake");
    EXPECT_EQ(meter->sampling(), absl::InfiniteDuration());
    EXPECT_DOUBLE_EQ(*meter->Joules(), 1.5);
    Set({{"ENERGY_MJ", "18446744073709551615"}});
    EXPECT_DOUBLE_EQ(*meter->Joules(), 18446744073709551.615);
    Set({{"ENERGY_MJ", "error 15"}});  // the error of a lost GPU
    EXPECT_EQ(meter->Joules().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(meter->Joules().status().message()), HasSubstr("Some Error"));
    Set({{"ENERGY_MJ", "1500"}});
    EXPECT_DOUBLE_EQ(*meter->Joules(), 1.5);
  }
}

TEST_F(NvmlMeterTest, WithoutACounterPowerIsIntegrated) {
  for (const char* source : {"POWER_MW", "INSTANT_MW"}) {
    Set({{source, "250000"}});
    const auto meter = Make();
    ASSERT_NE(meter, nullptr);
    EXPECT_LT(meter->sampling(), absl::Seconds(1));
    const absl::Time before = MonotonicNow();
    ASSERT_DOUBLE_EQ(*meter->Joules(), 0);
    const absl::Time between = MonotonicNow();
    absl::SleepFor(absl::Milliseconds(20));
    const absl::Time after = MonotonicNow();
    Set({{source, "350000"}});
    const double joules = *meter->Joules();
    // 300 W by the trapezoidal rule, over a time between these bounds.
    EXPECT_GE(joules, 300 * absl::ToDoubleSeconds(after - between));
    EXPECT_LE(joules, 300 * absl::ToDoubleSeconds(MonotonicNow() - before));
  }
  // The instantaneous power is preferred to the mean over a second.
  Set({{"POWER_MW", "1000000"}, {"INSTANT_MW", "0"}});
  const auto meter = Make();
  ASSERT_NE(meter, nullptr);
  (void)meter->Joules();
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(*meter->Joules(), 0);
}

TEST_F(NvmlMeterTest, MissingSupportIsReported) {
  Set({});
  EXPECT_EQ(MakeNvmlMeter("0").status().code(), absl::StatusCode::kUnimplemented);
  Set({{"ENERGY_MJ", "1"}});
  EXPECT_EQ(MakeNvmlMeter("7").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MakeNvmlMeter("0000:99:00.0").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MakeNvmlMeter("").status().code(), absl::StatusCode::kNotFound);
  const absl::Status none = MakeNvmlMeter("0", "libno-such-library.so.1").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("libno-such-library"));
  const absl::Status poor = MakeNvmlMeter("0000:17:00.0", POOR_NVML).status();
  EXPECT_EQ(poor.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(poor.message()), HasSubstr("lacks"));
  Set({{"INIT", "error 9"}});
  EXPECT_EQ(MakeNvmlMeter("0").status().code(), absl::StatusCode::kUnavailable);
}

// Returns the scripted answers in order, the last one repeatedly.
class ScriptedMeter final : public EnergyMeter {
 public:
  explicit ScriptedMeter(std::deque<absl::StatusOr<double>> answers, std::atomic<int>* asked = nullptr)
      : answers_(std::move(answers)), asked_(asked) {}
  const std::string& device() const override { return name_; }
  absl::Duration sampling() const override { return absl::InfiniteDuration(); }
  absl::StatusOr<double> Joules() override {
    if (asked_ != nullptr) ++*asked_;
    absl::StatusOr<double> answer = answers_.front();
    if (answers_.size() > 1) answers_.pop_front();
    return answer;
  }

 private:
  const std::string name_ = "scripted";
  std::deque<absl::StatusOr<double>> answers_;
  std::atomic<int>* const asked_;
};

EnergyReading Await(EnergyMonitor& monitor, const std::function<bool(const EnergyReading&)>& done) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  EnergyReading last;
  while (MonotonicNow() < deadline) {
    if (auto news = monitor.TakeNews()) {
      last = *news;
      if (done(last)) return last;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  ADD_FAILURE() << "no such reading came";
  return last;
}

TEST_F(NvmlMeterTest, TheMonitorIgnoresIntervalsWithoutAValidCounter) {
  // 10 + 20 + 5 J are counted; not those before the first reading, across the reset, across the error, or in
  // the implausible jump.
  EnergyMonitor monitor(
      std::make_unique<ScriptedMeter>(std::deque<absl::StatusOr<double>>{
          1e6, 1e6 + 10, 3.0, 23.0, absl::UnavailableError("lost"), 500.0, 505.0, 1e12, 1e12}),
      absl::Milliseconds(10));
  const EnergyReading reading =
      Await(monitor, [](const EnergyReading& r) { return r.sums.parked_j >= 34.9; });
  EXPECT_DOUBLE_EQ(reading.sums.parked_j, 35);
  EXPECT_NEAR(reading.sums.busy_j, 0, 1e-9);
  EXPECT_EQ(reading.device, "scripted");
  const EnergyReading later = Await(monitor, [](const EnergyReading& r) { return r.watts == 0; });
  EXPECT_DOUBLE_EQ(later.sums.parked_j, 35);
}

TEST(EnergySplit, FindsTheSharesOfADeviceThatFollowsTheModel) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Rng rng(seed);
    const sim::PowerModel power{.idle_w = 50 + 100 * rng.Uniform(), .peak_w = 300 + 400 * rng.Uniform()};
    EnergySplit split;
    split.AddWindow(5 * power.idle_w, 5, 0, 0);
    ASSERT_TRUE(split.idle_watts().has_value());
    double busy_j = 0, barrier_j = 0, parked_j = 5 * power.idle_w;
    for (int i = 0; i < 50; ++i) {
      const double busy = rng.Uniform() + 1e-3, barrier = rng.Uniform(),
                   parked = rng.Below(2) * rng.Uniform();
      split.AddWindow(power.BusyJoules({busy}, busy + barrier) + power.idle_w * parked,
                      busy + barrier + parked, busy, barrier);
      busy_j += power.peak_w * busy;
      barrier_j += power.idle_w * barrier;
      parked_j += power.idle_w * parked;
    }
    EXPECT_NEAR(split.sums().busy_j, busy_j, 1e-9 * busy_j);
    EXPECT_NEAR(split.sums().barrier_j, barrier_j, 1e-9 * barrier_j);
    EXPECT_NEAR(split.sums().parked_j, parked_j, 1e-9 * parked_j);
    EXPECT_NEAR(*split.idle_watts(), power.idle_w, 1e-9 * power.idle_w);
  }
}

TEST(EnergySplit, EveryJouleAndSecondIsCountedOnce) {
  Rng rng(1);
  EnergySplit split;
  double joules = 0, seconds = 0;
  for (int i = 0; i < 1'000; ++i) {
    const double window = 0.01 + rng.Uniform(), drawn = 700 * rng.Uniform() * window;
    // Includes reported times that exceed the window.
    split.AddWindow(drawn, window, rng.Below(3) * rng.Uniform() * window,
                    rng.Below(3) * rng.Uniform() * window);
    joules += drawn, seconds += window;
    EXPECT_NEAR(split.watts(), drawn / window, 1e-9);
  }
  const EnergySums& sums = split.sums();
  EXPECT_NEAR(sums.busy_j + sums.barrier_j + sums.parked_j, joules, 1e-9 * joules);
  EXPECT_NEAR(sums.busy_s + sums.barrier_s + sums.parked_s, seconds, 1e-9 * seconds);
}

}  // namespace
}  // namespace bfio::worker
