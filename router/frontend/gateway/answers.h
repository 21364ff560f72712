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
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "engines/smg_common.pb.h"
#include "router/frontend/request_handler.h"
#include "router/frontend/tokenizer/model_files.h"

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

// The fields of the protocols' answers that have the same names and meanings. `model` may be null: then only
// its name is known.
template <typename ModelInfo>
ModelInfo ModelInfoOf(const std::string& name, const ModelFiles* model, const Serving& serving) {
  ModelInfo out;
  out.set_is_generation(true);
  out.set_served_model_name(name);
  out.set_model_path(name);
  out.set_max_context_length(Clamped(serving.max_sequence_tokens));
  out.set_max_req_input_len(Clamped(serving.max_sequence_tokens));
  if (model == nullptr) return out;
  out.set_model_path(model->directory);
  out.set_tokenizer_path(model->directory);
  out.set_vocab_size(model->vocab_size);
  out.set_model_type(model->model_type);
  for (const std::string& architecture : model->architectures) out.add_architectures(architecture);
  for (const int32_t id : model->eos_token_ids) out.add_eos_token_ids(id);
  out.set_bos_token_id(model->bos_token_id);
  out.set_pad_token_id(model->pad_token_id);
  return out;
}

template <typename LoadsResponse>
absl::StatusOr<LoadsResponse> LoadsOf(const Loads& loads, RankView view, std::optional<int32_t> rank) {
  BFIO_ASSIGN_OR_RETURN(const std::vector<RankLoad> selected, SelectedRanks(loads, view, rank));
  LoadsResponse out;
  out.set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6S+00:00", loads.timestamp, absl::UTCTimeZone()));
  out.set_version(loads.version);
  out.set_dp_rank_count(Clamped(SizeOf(loads, view).ranks));
  for (const RankLoad& from : selected) {
    auto& load = *out.add_loads();
    load.set_dp_rank(static_cast<int32_t>(from.rank));
    load.set_num_running_reqs(Clamped(from.running_requests));
    load.set_num_waiting_reqs(Clamped(from.waiting_requests));
    load.set_num_total_reqs(Clamped(from.running_requests + from.waiting_requests));
    load.set_num_used_tokens(Clamped(from.used_tokens));
    load.set_max_total_num_tokens(Clamped(from.max_tokens));
    load.set_token_usage(TokenUsage(from));
    load.set_gen_throughput(from.tokens_per_second);
    load.set_utilization(load.token_usage());
    load.set_max_running_requests(Clamped(from.slots));
    // No KV is kept for later requests, so all waiting prompt tokens are uncached.
    load.set_num_waiting_uncached_tokens(Clamped(from.waiting_tokens));
  }
  return out;
}

// Load records by rank, without `sample`, which counts the records of a stream.
std::vector<common_pb::EngineLoad> LoadRecords(const Loads& loads, RankView view);

}  // namespace bfio::router::gateway

#endif  // BFIO_ROUTER_FRONTEND_GATEWAY_ANSWERS_H_
