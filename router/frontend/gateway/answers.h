// Answers to a gateway about the ranks and the model.
//
// Purpose: kOne shows all ranks as one engine of data-parallel size 1 with their total load, for handlers
// that choose a rank better than a gateway could. kEach shows every rank with its own load, in vLLM's form:
// vLLM reports the KV memory of all its ranks as that of each, and a rank's share of use as tokens of that
// sum. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_GATEWAY_ANSWERS_H_
#define BFIO_ROUTER_FRONTEND_GATEWAY_ANSWERS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engines/smg_common.pb.h"
#include "router/frontend/request_handler.h"

namespace bfio::router::gateway {

namespace common_pb = ::smg::grpc::common;

enum class RankView { kOne, kEach };

// The wire's integers are signed and have 32 bits.
inline int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

// The ranks that are shown to a gateway.
std::vector<RankLoad> RanksOf(const Loads& loads, RankView view);
// The loads of `rank`, or of all ranks. NOT_FOUND: this view has no such rank.
absl::StatusOr<std::vector<RankLoad>> SelectedRanks(const Loads& loads, RankView view,
                                                    std::optional<int32_t> rank);
// Share of the KV memory that is in use, 0 to 1.
double TokenUsage(const RankLoad& load);
// The size of an engine as a gateway sees it.
struct EngineSize {
  int64_t ranks = 0;
  // Running and waiting.
  int64_t requests = 0;
  // Slots of one rank.
  int64_t slots = 0;
  // KV memory that each rank is shown with.
  int64_t max_tokens = 0;
};
EngineSize SizeOf(const Loads& loads, RankView view);

// What does not change while the engine serves.
struct EngineFacts {
  // Tokens per block of KV memory; 0: unknown.
  int32_t page_tokens = 0;
  // ModelFiles::dtype.
  std::string dtype;
};

// Load records by rank, without `sample`, which counts the records of a stream.
std::vector<common_pb::EngineLoad> LoadRecords(const Loads& loads, RankView view);

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_ANSWERS_H_
