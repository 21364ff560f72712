// Recorded sessions in memory, for tests of the decision log.
#ifndef BFIO_TESTS_TESTING_RECORDED_SESSION_H_
#define BFIO_TESTS_TESTING_RECORDED_SESSION_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/core/admission/admission_text.h"
#include "router/record/codec.h"
#include "router/record/log_format.h"
#include "router/record/recorder.h"
#include "tests/testing/one_group.h"
#include "tests/testing/random_session.h"
#include "tests/testing/uncoupled_session.h"

namespace bfio::testing {

// Stores the output of a recorder, as records by segment.
class MemoryLog final : public record::LogSink {
 public:
  using Segments = std::vector<std::vector<record::Record>>;
  MemoryLog(Segments* out, int64_t segment_bytes) : out_(out), segment_bytes_(segment_bytes) {}

  void BeginSegment(const record::LogHeader& header) override {
    id_base_ = header.id_base;
    std::string bytes;
    record::Encode(header, bytes);
    out_->emplace_back().push_back(*record::Decode(bytes, 0));
  }
  bool Append(absl::string_view records) override {
    while (const auto size = record::TakeRecordSize(records)) {
      const absl::StatusOr<record::Record> record = record::Decode(records.substr(0, *size), id_base_);
      EXPECT_TRUE(record.ok()) << record.status();
      if (record.ok()) out_->back().push_back(*record);
      records.remove_prefix(*size);
    }
    return true;
  }
  void Close(record::LogEnd) override {}
  int64_t segment_bytes() const override { return segment_bytes_; }

 private:
  Segments* const out_;
  const int64_t segment_bytes_;
  core::RequestId id_base_ = 0;
};

struct SessionSetup {
  std::string policy = "bf_io_auto";
  std::string lookahead = "none";
  core::PolicyOptions policy_options;
  core::PlanMode plan_mode = core::PlanMode::kPipelined;
  core::GroupKind kind = core::GroupKind::kBarrier;
  std::string admission = "none";
  // Policies to which the session switches from time to time.
  std::vector<std::string> others;
};

inline core::SchedulerOptions OptionsOf(const SessionSetup& setup) {
  core::SchedulerOptions options = {.max_waiting = 25, .plan_mode = setup.plan_mode};
  const core::AdmissionSetting admission = *core::ParseAdmission(setup.admission);
  options.admission = admission.kv;
  options.wait = admission.wait;
  return options;
}

// A group whose events a recorder writes to `sink`.
struct RecordedGroup {
  RecordedGroup(const SessionSetup& setup, std::unique_ptr<record::LogSink> sink)
      : recorder(std::move(sink), {"test", core::RequestId{1'800'000'000} << 20}, OptionsOf(setup),
                 {setup.policy, setup.policy_options}, setup.lookahead),
        group(OptionsOf(setup), core::PolicySetting{setup.policy, setup.policy_options},
              *core::MakeLookahead(setup.lookahead), setup.kind, &recorder) {}

  record::Recorder recorder;
  OneGroup group;
};

// A session of `turns` random turns, recorded into `sink`.
inline void RunRecorded(const SessionSetup& setup, uint64_t seed, int turns,
                        std::unique_ptr<record::LogSink> sink) {
  RecordedGroup recorded(setup, std::move(sink));
  if (setup.kind != core::GroupKind::kBarrier) {
    UncoupledSession<OneGroup> session(&recorded.group, seed, setup.admission == "none");
    session.after_turn = [&] { recorded.recorder.Flush(); };
    session.Run(turns);
    return;
  }
  RandomSession<OneGroup> session(recorded.group, seed);
  session.on_switch = [&](uint64_t random) {
    if (setup.others.empty()) return;
    const std::string& name = setup.others[random % setup.others.size()];
    recorded.group.SetPolicy(core::PolicySetting{name, setup.policy_options});
  };
  for (int turn = 0; turn < turns; ++turn) {
    session.Iterate();
    recorded.recorder.Flush();
  }
}

}  // namespace bfio::testing

#endif  // BFIO_TESTS_TESTING_RECORDED_SESSION_H_
