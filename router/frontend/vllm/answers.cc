#include "router/frontend/vllm/answers.h"

#include <algorithm>
#include <limits>

namespace bfio::router::vllm {
namespace {

// The wire has 32 bits, with a sign.
int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

double Share(int64_t part, int64_t of) {
  return of > 0 ? static_cast<double>(part) / static_cast<double>(of) : 0;
}

// All ranks as one.
RankLoad Sum(const Loads& loads) {
  RankLoad sum;
  for (const RankLoad& load : loads.loads) {
    sum.running_requests += load.running_requests;
    // The pool is the same for all.
    sum.waiting_requests = load.waiting_requests;
    sum.used_tokens += load.used_tokens;
    sum.max_tokens += load.max_tokens;
    sum.tokens_per_second += load.tokens_per_second;
    sum.slots += load.slots;
  }
  return sum;
}

}  // namespace

pb::GetModelInfoResponse ModelInfo(const std::string& name, const ModelFiles* model, const Serving& serving) {
  pb::GetModelInfoResponse out;
  out.set_is_generation(true);
  out.set_served_model_name(name);
  out.set_model_path(name);
  out.set_max_context_length(static_cast<uint32_t>(Clamped(serving.max_sequence_tokens)));
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

pb::GetServerInfoResponse ServerInfo(const Loads& loads, absl::Duration uptime) {
  const RankLoad sum = Sum(loads);
  pb::GetServerInfoResponse out;
  out.set_active_requests(
      static_cast<uint32_t>(Clamped(sum.running_requests) + Clamped(sum.waiting_requests)));
  out.set_uptime_seconds(absl::ToDoubleSeconds(uptime));
  out.set_server_type("vllm-grpc");
  out.set_data_parallel_size(1);
  out.set_max_num_seqs(Clamped(sum.slots));
  return out;
}

pb::GetLoadsResponse LoadsResponse(const Loads& loads) {
  const RankLoad sum = Sum(loads);
  pb::GetLoadsResponse out;
  out.set_timestamp(absl::FormatTime("%Y-%m-%dT%H:%M:%E6S+00:00", loads.timestamp, absl::UTCTimeZone()));
  out.set_version(loads.version);
  out.set_dp_rank_count(1);
  pb::SchedulerLoad& load = *out.add_loads();
  load.set_num_running_reqs(Clamped(sum.running_requests));
  load.set_num_waiting_reqs(Clamped(sum.waiting_requests));
  load.set_num_total_reqs(Clamped(sum.running_requests + sum.waiting_requests));
  load.set_num_used_tokens(Clamped(sum.used_tokens));
  load.set_max_total_num_tokens(Clamped(sum.max_tokens));
  load.set_token_usage(Share(sum.used_tokens, sum.max_tokens));
  load.set_gen_throughput(sum.tokens_per_second);
  load.set_utilization(load.token_usage());
  load.set_max_running_requests(Clamped(sum.slots));
  return out;
}

common_pb::EngineLoad LoadRecord(const Loads& loads) {
  const RankLoad sum = Sum(loads);
  common_pb::EngineLoad out;
  out.set_running_requests(static_cast<uint32_t>(Clamped(sum.running_requests)));
  out.set_waiting_requests(static_cast<uint32_t>(Clamped(sum.waiting_requests)));
  out.set_token_usage(Share(sum.used_tokens, sum.max_tokens));
  out.set_active_token_usage(out.token_usage());
  out.set_gen_throughput(sum.tokens_per_second);
  out.set_max_running_requests(static_cast<uint32_t>(Clamped(sum.slots)));
  out.set_load_only(true);
  out.set_num_used_tokens(Clamped(sum.used_tokens));
  out.set_max_total_num_tokens(Clamped(sum.max_tokens));
  return out;
}

}  // namespace bfio::router::vllm
