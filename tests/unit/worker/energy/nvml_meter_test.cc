// The NVML meter through the dynamic linker against a fake library, and the energy monitor over it.
#include "worker/energy/nvml_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
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

TEST_F(NvmlMeterTest, AMeterThatNeverAnswersGivesNoReading) {
  std::atomic<int> asked = 0;
  EnergyMonitor monitor(std::make_unique<ScriptedMeter>(
                            std::deque<absl::StatusOr<double>>{absl::UnavailableError("gone")}, &asked),
                        absl::Milliseconds(1));
  // By then the first answers have been processed.
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  while (asked < 4 && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_GE(asked, 4);
  EXPECT_FALSE(monitor.TakeNews().has_value());
}

TEST_F(NvmlMeterTest, StepsAreChargedTheirShare) {
  Set({{"WATTS", "200"}});
  auto meter = Make();
  ASSERT_NE(meter, nullptr);
  EnergyMonitor monitor(std::move(meter), absl::Milliseconds(50));
  Await(monitor, [](const EnergyReading& r) { return r.idle_watts.has_value(); });
  for (int i = 0; i < 40; ++i) {
    monitor.AddStep(2'000'000, 1'000'000);
    absl::SleepFor(absl::Milliseconds(3));
  }
  const EnergyReading reading = Await(monitor, [](const EnergyReading& r) { return r.sums.busy_s > 0.05; });
  const EnergySums& sums = reading.sums;
  EXPECT_GT(sums.busy_j, 0);
  EXPECT_GT(sums.barrier_j, 0);
  EXPECT_NEAR(sums.busy_s, 2 * sums.barrier_s, 0.1 * sums.busy_s);
  // At constant power, energy is proportional to time.
  const double all_j = sums.busy_j + sums.barrier_j + sums.parked_j,
               all_s = sums.busy_s + sums.barrier_s + sums.parked_s;
  EXPECT_NEAR(all_j, 200 * all_s, 0.1 * 200 * all_s);
}

}  // namespace
}  // namespace bfio::worker
