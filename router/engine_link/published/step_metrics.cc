#include "router/engine_link/published/step_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/engine_link/published/msgpack_reader.h"

namespace bfio::router {
namespace {

constexpr int64_t kVersion = 1;
constexpr double kMostCount = int64_t{1} << 40, kLongestStep_s = 3600;

// {version, wall_time, scheduled_requests: {..}, ..}; maps have names only, so places have none.
class StepReader final : public MsgpackReader {
 public:
  double version = 0, wall_s = 0;
  double prefills = 0, prefill_tokens = 0, prefill_cached = 0, decodes = 0, decode_tokens = 0;

 private:
  void OnValue(const Value& value) override {
    double none = 0;
    const absl::string_view name = NameIn(depth() - 1);
    const bool scheduled = depth() == 2 && NameIn(0) == "scheduled_requests";
    (depth() == 1 && name == "version"              ? version
     : depth() == 1 && name == "wall_time"          ? wall_s
     : scheduled && name == "num_prefill_requests"  ? prefills
     : scheduled && name == "sum_prefill_tokens"    ? prefill_tokens
     : scheduled && name == "sum_prefill_kv_tokens" ? prefill_cached
     : scheduled && name == "num_decode_requests"   ? decodes
     : scheduled && name == "sum_decode_kv_tokens"  ? decode_tokens
                                                    : none) = value.number;
  }
};

}  // namespace

absl::StatusOr<EngineStep> ReadStepMetrics(uint64_t number, absl::string_view message) {
  StepReader read;
  if (!read.Read(message)) return absl::InvalidArgumentError("it is no msgpack of step metrics");
  if (read.version != kVersion)
    return absl::InvalidArgumentError(absl::StrCat("its version is ", read.version, ", not ", kVersion));
  const auto within = [](double value, double most) { return value >= 0 && value <= most; };
  for (const auto& [value, most] :
       {std::pair(read.prefills, double{kMostEngineSlots}), std::pair(read.decodes, double{kMostEngineSlots}),
        std::pair(read.prefill_tokens, kMostCount), std::pair(read.prefill_cached, kMostCount),
        std::pair(read.decode_tokens, kMostCount)})
    if (!within(value, most)) return absl::InvalidArgumentError("a count is out of range");
  if (!within(read.wall_s, kLongestStep_s)) return absl::InvalidArgumentError("its time is out of range");
  if (number > INT64_MAX) return absl::InvalidArgumentError("its number is out of range");
  // Chunks of equal size after equal parts of the prompts: their sum is all that is known.
  const double each = read.prefill_tokens / std::max(1.0, read.prefills);
  EngineStep step;
  step.step = static_cast<int64_t>(number);
  step.decodes = step.decode_tokens = static_cast<int64_t>(read.decodes);
  step.decode_context = static_cast<int64_t>(read.decode_tokens);
  step.prefills = static_cast<int64_t>(read.prefills);
  step.prompt_tokens = static_cast<int64_t>(read.prefill_tokens);
  step.prefill_pairs = each * (read.prefill_cached + read.prefill_tokens / 2);
  step.took = absl::Seconds(read.wall_s);
  return step;
}

}  // namespace bfio::router
