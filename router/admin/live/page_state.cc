#include "router/admin/live/page_state.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

using nlohmann::json;

json Of(const v1::Distribution& d) {
  return {{"upperBounds", std::vector<double>(d.upper_bounds().begin(), d.upper_bounds().end())},
          {"counts", std::vector<uint64_t>(d.counts().begin(), d.counts().end())},
          {"sum", d.sum()}};
}

json Of(const v1::WorkerState& worker) {
  json result = {{"workerId", worker.worker_id()},
                 {"phase", v1::WorkerPhase_Name(worker.phase())},
                 {"engine", worker.engine()},
                 {"slots", worker.slots()},
                 {"kvTokens", worker.kv_tokens()},
                 {"reservedKvTokens", worker.reserved_kv_tokens()},
                 {"activeRequests", worker.active_requests()},
                 {"loadTokens", worker.load_tokens()},
                 {"stragglerSteps", worker.straggler_steps()},
                 {"stepPrefillTokens", worker.step_prefill_tokens()}};
  if (worker.has_rank()) result["rank"] = worker.rank();
  if (!worker.group().empty()) result["group"] = worker.group();
  return result;
}

json Of(const v1::GroupState& group) {
  json result = {{"name", group.name()}, {"index", group.index()}, {"model", group.model()}};
  if (!group.has_placement()) return result;
  json candidates = json::array();
  for (const auto* list : {&group.placement().candidates(), &group.placement().watched()}) {
    for (const v1::PlacementState::Candidate& candidate : *list)
      candidates.push_back({{"rule", candidate.rule()}, {"stepRatio", candidate.step_ratio()}});
  }
  result["placement"] = {{"rule", group.placement().rule()}, {"candidates", std::move(candidates)}};
  return result;
}

json Of(const v1::RequestTotals& r) {
  return {{"accepted", r.accepted()},
          {"completed", r.completed()},
          {"cancelled", r.cancelled()},
          {"aborted", r.aborted()},
          {"failed", r.failed()},
          {"replayed", r.replayed()},
          {"resumed", r.resumed()},
          {"refusedPoolFull", r.refused_pool_full()},
          {"refusedInvalid", r.refused_invalid()},
          {"refusedTenant", r.refused_tenant()},
          {"refusedMemory", r.refused_memory()},
          {"tokensLost", r.tokens_lost()},
          {"tokensDuplicated", r.tokens_duplicated()}};
}

template <typename Messages>
json List(const Messages& messages) {
  json result = json::array();
  for (const auto& message : messages) result.push_back(Of(message));
  return result;
}

}  // namespace

std::string PageStateJson(const v1::ClusterState& state) {
  const v1::RequestLatencies& latencies = state.latencies();
  const json page = {
      {"version", state.version()},
      {"uptime", absl::StrCat(state.uptime().seconds(), "s")},
      {"epoch", state.epoch()},
      {"policy", {{"name", state.policy().name()}}},
      {"expectedWorkers", state.expected_workers()},
      {"waitingRequests", state.waiting_requests()},
      {"maxWaitingRequests", state.max_waiting_requests()},
      {"steps", {{"steps", state.steps().steps()}, {"generatedTokens", state.steps().generated_tokens()}}},
      {"latencies",
       {{"queueTimeS", Of(latencies.queue_time_s())},
        {"timeToFirstTokenS", Of(latencies.time_to_first_token_s())},
        {"interTokenS", Of(latencies.inter_token_s())},
        {"timePerOutputTokenS", Of(latencies.time_per_output_token_s())},
        {"endToEndS", Of(latencies.end_to_end_s())}}},
      {"workers", List(state.workers())},
      {"groups", List(state.groups())},
      {"requests", Of(state.requests())}};
  // Invalid UTF-8 in a name is replaced, because it would throw otherwise.
  return page.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace bfio::router
