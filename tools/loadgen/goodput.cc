#include "tools/loadgen/goodput.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace bfio::loadgen {
namespace {

absl::Status BadGoodput(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--goodput: ", what, "; expected limits in seconds such as ttft:0.5,tpot:0.05,e2e:30"));
}

bool Misses(const std::optional<double>& limit, double value) {
  return limit.has_value() && value > *limit;
}

}  // namespace

absl::StatusOr<GoodputLimits> ParseGoodput(absl::string_view text) {
  GoodputLimits limits;
  if (text.empty()) return limits;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    std::optional<double>* limit = pair.first == "ttft"                          ? &limits.ttft_s
                                   : pair.first == "tpot"                        ? &limits.tpot_s
                                   : pair.first == "e2e" || pair.first == "e2el" ? &limits.e2e_s
                                                                                 : nullptr;
    if (limit == nullptr)
      return BadGoodput(absl::StrCat("'", part, "' is not ttft:SECONDS, tpot:SECONDS or e2e:SECONDS"));
    if (limit->has_value()) return BadGoodput(absl::StrCat("two limits on ", pair.first));
    double seconds = 0;
    if (!absl::SimpleAtod(pair.second, &seconds) || !(seconds > 0) || std::isinf(seconds)) {
      return BadGoodput(absl::StrCat("'", pair.second, "' is not a positive number"));
    }
    *limit = seconds;
  }
  return limits;
}

bool Goodput::Add(const EndedRequest& request) {
  if (!request.ok()) return false;
  const bool ttft = Misses(limits_.ttft_s, request.ttft_s);
  const bool tpot = request.output_tokens > 1 && Misses(limits_.tpot_s, request.tpot_s());
  const bool e2e = Misses(limits_.e2e_s, request.e2e_s);
  missed_ttft_ += ttft;
  missed_tpot_ += tpot;
  missed_e2e_ += e2e;
  const bool good = !ttft && !tpot && !e2e;
  good_ += good;
  return good;
}

}  // namespace bfio::loadgen
