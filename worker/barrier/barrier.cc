#include "worker/barrier/barrier.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace bfio::worker {
namespace {

constexpr char kPayload[] = "bfio/missing_ranks";

}  // namespace

absl::Status BlameMissing(absl::Status status, const std::vector<int32_t>& ranks) {
  status.SetPayload(kPayload, absl::Cord(absl::StrJoin(ranks, ",")));
  return status;
}

std::vector<int32_t> MissingRanks(const absl::Status& status) {
  std::vector<int32_t> ranks;
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return ranks;
  const std::string list(*payload);
  for (const absl::string_view word : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    int32_t rank = 0;
    if (absl::SimpleAtoi(word, &rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace bfio::worker
