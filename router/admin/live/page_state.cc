#include "router/admin/live/page_state.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace bfio::router {
namespace {

using nlohmann::json;

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
  const auto list = [](const auto& rules) {
    json result = json::array();
    for (const v1::PlacementState::Candidate& candidate : rules)
      result.push_back({{"rule", candidate.rule()}, {"stepRatio", candidate.step_ratio()}});
    return result;
  };
  result["placement"] = {{"rule", group.placement().rule()},
                         {"candidates", list(group.placement().candidates())},
                         {"watched", list(group.placement().watched())}};
  return result;
}

template <typename Messages>
json List(const Messages& messages) {
  json result = json::array();
  for (const auto& message : messages) result.push_back(Of(message));
  return result;
}

}  // namespace

std::string PageStateJson(const v1::ClusterState& state) {
  const json page = {
      {"version", state.version()},
      {"uptime", absl::StrCat(state.uptime().seconds(), "s")},
      {"epoch", state.epoch()},
      {"policy", {{"name", state.policy().name()}}},
      {"expectedWorkers", state.expected_workers()},
      {"waitingRequests", state.waiting_requests()},
      {"maxWaitingRequests", state.max_waiting_requests()},
      {"steps", {{"steps", state.steps().steps()}, {"generatedTokens", state.steps().generated_tokens()}}},
      {"workers", List(state.workers())},
      {"groups", List(state.groups())},
      {"requests", {{"completed", state.requests().completed()}, {"failed", state.requests().failed()}}}};
  // Invalid UTF-8 in a name is replaced, because it would throw otherwise.
  return page.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace bfio::router
