#include "router/app/engines.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bfio::router {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

struct Engine {
  // Absent: it never answers.
  std::optional<absl::StatusOr<EngineDescription>> description;
  std::vector<EngineRankLoad> loads;
};

class FakeClient final : public EngineClient {
 public:
  explicit FakeClient(const Engine& engine) : engine_(engine) {}
  void Describe(absl::Duration,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    if (engine_.description) std::move(done)(*engine_.description);
  }
  void CheckHealth(absl::Duration, absl::AnyInvocable<void(absl::Status) &&>) override {}
  void GetLoads(absl::Duration,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineRankLoad>>) &&> done) override {
    if (engine_.loads.empty()) return std::move(done)(absl::UnimplementedError("no loads"));
    std::move(done)(engine_.loads);
  }
  std::shared_ptr<EngineRecords> Subscribe(RecordCallbacks) override { return nullptr; }
  std::shared_ptr<EngineStream> Generate(const EngineCall&, std::optional<int32_t>, const std::string&,
                                         StreamCallbacks) override {
    return nullptr;
  }

 private:
  const Engine engine_;
};

EngineDescription Of(const std::string& model, int32_t ranks = 1, int32_t first = 0, int32_t all = 1) {
  return {.ranks = ranks,
          .first_rank = first,
          .all_ranks = all,
          .slots = 8,
          .kv_tokens = 4000,
          .max_sequence_tokens = 1000,
          .model = model};
}

EngineCheck Check(const std::string& engines, int32_t workers, const std::map<std::string, Engine>& at,
                  const std::string& barrier = "") {
  RouterOptions options;
  options.engines.engines = *ParseEngines(engines);
  for (EngineAddress& engine : options.engines.engines) engine.barrier = barrier;
  options.workers = workers;
  options.step_timeout = absl::ZeroDuration();
  return CheckEngines(options,
                      {.resolve = [](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
                         if (host == "pods") return std::vector<std::string>{"10.0.0.1", "10.0.0.2"};
                         return absl::NotFoundError("no such name");
                       },
                       .make_client =
                           [&at](const EngineAddress& engine) {
                             return std::make_unique<FakeClient>(at.at(engine.server.host));
                           },
                       .grace = absl::ZeroDuration()});
}

TEST(CheckEngines, ALineForEachRank) {
  const EngineCheck check = Check("vllm+dns://pods:1,vllm://a:1", 4,
                                  {{"10.0.0.1", {Of("m"), {{0, {.requests = 3, .tokens = 70}}}}},
                                   {"10.0.0.2", {Of("m"), {{7, {.requests = 9}}}}},
                                   {"a", {Of("m", 2, 2, 4)}}},
                                  "ep");
  EXPECT_THAT(
      check.ranks,
      ElementsAre("vllm://10.0.0.1:1 rank 0: model m, 8 slots, 4000 KV tokens, barrier ep, load 3 "
                  "requests and 70 tokens",
                  "vllm://10.0.0.2:1 rank 0: model m, 8 slots, 4000 KV tokens, barrier ep, load not "
                  "reported",
                  "vllm://a:1 rank 2: model m, 8 slots, 4000 KV tokens, barrier ep, load not reported",
                  "vllm://a:1 rank 3: model m, 8 slots, 4000 KV tokens, barrier ep, load not reported"));
  EXPECT_THAT(check.faults, ElementsAre());
}

TEST(CheckEngines, EachFaultIsALine) {
  const std::map<std::string, Engine> at = {{"a", {Of("m")}},
                                            {"b", {Of("m")}},
                                            {"other", {Of("n")}},
                                            {"part", {Of("m", 2, 0, 4)}},
                                            {"refuses", {absl::UnavailableError("Connection refused")}},
                                            {"silent", {}},
                                            {"small", {EngineDescription{.model = "m"}}}};
  struct Row {
    const char* engines;
    int32_t workers;
    const char* barrier;
    std::vector<std::string> faults;
  };
  for (const Row& row : {
           Row{"vllm://a:1,vllm://b:1", 1, "", {}},
           {"vllm://a:1,vllm://b:1", 2, "ep", {}},
           {"vllm://refuses:1",
            1,
            "",
            {"vllm://refuses:1: Connection refused (is it started, and is this its port?)"}},
           {"vllm://a:1,vllm://silent:1", 1, "", {"vllm://silent:1: no answer"}},
           {"vllm://a:1,vllm+dns://nowhere:1", 1, "", {"vllm+dns://nowhere:1: the name has no address"}},
           {"vllm://a:1,vllm://other:1", 1, "", {"vllm://other:1: model n, but vllm://a:1 has m"}},
           {"vllm://small:1",
            1,
            "",
            {"vllm://small:1: it does not report how many requests it runs at a time (max_num_seqs)"}},
           {"vllm://a:1,vllm://b:1", 3, "", {"the engines: 2 ranks found, but --workers=3"}},
           {"vllm://a:1,vllm://b:1", 1, "ep", {"barrier ep: 2 ranks found, but --workers=1"}},
           {"vllm://part:1", 2, "ep", {"barrier ep: 2 of the model's 4 ranks are listed"}},
       }) {
    EXPECT_THAT(Check(row.engines, row.workers, at, row.barrier).faults, ElementsAreArray(row.faults))
        << row.engines;
  }
}

}  // namespace
}  // namespace bfio::router
