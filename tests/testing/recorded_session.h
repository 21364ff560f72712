// Recorded sessions in memory, for tests of the decision log.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/core/admission/admission_text.h"
#include "router/core/scheduler/cluster.h"
#include "router/record/codec.h"
#include "router/record/log_format.h"
#include "router/record/recorder.h"
#include "tests/testing/cluster_session.h"

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
  std::vector<core::GroupKind> kinds = {core::GroupKind::kBarrier};
  size_t groups = 1;
  uint32_t models = 0;
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

// A session whose events a recorder writes to `sink`.
struct RecordedSession {
  RecordedSession(const SessionSetup& setup, uint64_t seed, std::unique_ptr<record::LogSink> sink)
      : recorder(std::move(sink), {"test", core::RequestId{1'800'000'000} << 20}, OptionsOf(setup),
                 {setup.policy, setup.policy_options}, setup.lookahead),
        cluster(OptionsOf(setup), {setup.policy, setup.policy_options}, {},
                *core::MakeLookahead(setup.lookahead), &recorder),
        session(&cluster, {.seed = seed,
                           .most_groups = setup.groups,
                           .kinds = setup.kinds,
                           .ample_kv = false,
                           .reserves = setup.admission == "none",
                           .models = setup.models,
                           .varied = true}),
        setup_(setup),
        rng_(seed) {}

  void Iterate() {
    if (!setup_.others.empty() && rng_.Below(60) == 0) {
      const std::string& name = setup_.others[rng_.Below(setup_.others.size())];
      EXPECT_TRUE(cluster.Apply(core::SetPolicy{{name, setup_.policy_options}}).status.ok());
    }
    session.Iterate();
    recorder.Flush();
  }

  record::Recorder recorder;
  core::Cluster cluster;
  ClusterSession session;

 private:
  const SessionSetup setup_;
  Rng rng_;
};

// A session of `turns` random turns, recorded into `sink`.
inline void RunRecorded(const SessionSetup& setup, uint64_t seed, int turns,
                        std::unique_ptr<record::LogSink> sink) {
  RecordedSession recorded(setup, seed, std::move(sink));
  for (int turn = 0; turn < turns; ++turn) recorded.Iterate();
}

}  // namespace bfio::testing
