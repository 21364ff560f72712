#include "router/admin/state_metrics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"

namespace bfio::router {
namespace {

using v1::ClusterState;
using v1::WorkerState;
using enum MetricKind;

// The field of a message that a path names, such as "steps.late_plans".
struct Found {
  const google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* field;
};
Found Find(const google::protobuf::Message& message, absl::string_view path) {
  const size_t dot = path.find('.');
  const auto* field = message.GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
  if (dot == absl::string_view::npos) return {&message, field};
  return Find(message.GetReflection()->GetMessage(message, field), path.substr(dot + 1));
}

double NumberAt(const google::protobuf::Message& message, absl::string_view path) {
  using google::protobuf::FieldDescriptor;
  const auto [at, field] = Find(message, path);
  const google::protobuf::Reflection& read = *at->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return read.GetBool(*at, field);
    case FieldDescriptor::CPPTYPE_INT32: return read.GetInt32(*at, field);
    case FieldDescriptor::CPPTYPE_INT64: return static_cast<double>(read.GetInt64(*at, field));
    case FieldDescriptor::CPPTYPE_UINT32: return read.GetUInt32(*at, field);
    case FieldDescriptor::CPPTYPE_UINT64: return static_cast<double>(read.GetUInt64(*at, field));
    default: return read.GetDouble(*at, field);
  }
}

// A metric with one series for each `Of`; its value is a field of `Of`, or computed.
template <typename Of>
struct Metric {
  MetricInfo info;
  const char* path = nullptr;
  double (*value)(const Of&) = nullptr;

  constexpr Metric(absl::string_view name, MetricKind kind, absl::string_view label, absl::string_view help,
                   const char* from)
      : info{name, kind, label, help}, path(from) {}
  constexpr Metric(absl::string_view name, MetricKind kind, absl::string_view label, absl::string_view help,
                   double (*from)(const Of&))
      : info{name, kind, label, help}, value(from) {}
  double Value(const Of& of) const { return value == nullptr ? NumberAt(of, path) : value(of); }
};
// A metric with one series per reason, each a field of v1::RequestTotals.
struct ReasonMetric {
  struct Reason {
    const char *name = nullptr, *path = nullptr;
  };
  MetricInfo info;
  Reason reasons[4];
};

bool IsServing(const WorkerState& worker) {
  return worker.has_rank();
}

// Folds a value over the ranks; 0 when there are none.
double OverRanks(const ClusterState& state, double (*value)(const WorkerState&),
                 const std::function<double(double, double)>& fold) {
  bool first = true;
  double result = 0;
  for (const WorkerState& worker : state.workers()) {
    if (!IsServing(worker)) continue;
    result = first ? value(worker) : fold(result, value(worker));
    first = false;
  }
  return result;
}

double Load(const WorkerState& worker) {
  return static_cast<double>(worker.load_tokens());
}
double Max(double a, double b) {
  return std::max(a, b);
}
double Min(double a, double b) {
  return std::min(a, b);
}
double Sum(double a, double b) {
  return a + b;
}
double One(const WorkerState&) {
  return 1;
}

double Running(const ClusterState& state) {
  return OverRanks(
      state, [](const WorkerState& w) { return double(w.active_requests()) + w.inflight_requests(); }, Sum);
}
double MeanLoad(const ClusterState& state) {
  const double ranks = OverRanks(state, One, Sum);
  return ranks == 0 ? 0 : OverRanks(state, Load, Sum) / ranks;
}
double KvUsage(const ClusterState& state) {
  const double capacity = OverRanks(
      state, [](const WorkerState& w) { return double(w.kv_tokens()); }, Sum);
  return capacity == 0 ? 0 : OverRanks(state, Load, Sum) / capacity;
}

// Load / (ranks * largest load of the group), both summed over groups, because no rank waits for another
// group's ranks; 1 when there is no load.
double Balance(const ClusterState& state) {
  struct Group {
    double ranks = 0, max = 0;
  };
  std::map<absl::string_view, Group> groups;
  double load = 0, paid = 0;
  for (const WorkerState& worker : state.workers()) {
    if (!IsServing(worker)) continue;
    Group& group = groups[worker.group()];
    ++group.ranks;
    group.max = std::max(group.max, Load(worker));
    load += Load(worker);
  }
  for (const auto& [name, group] : groups) paid += group.ranks * group.max;
  return paid == 0 ? 1 : load / paid;
}

// The names of vLLM's metrics that dashboards, autoscalers and the Gateway API inference extension read.
constexpr Metric<ClusterState> kVllm[] = {
    {"vllm:num_requests_running", kGauge, "model_name",
     "requests that hold a slot, under the name that vLLM's dashboards and autoscalers read", Running},
    {"vllm:num_requests_waiting", kGauge, "model_name", "requests that wait for a slot", "waiting_requests"},
    {"vllm:kv_cache_usage_perc", kGauge, "model_name", "share of the KV tokens of all ranks in use, 0 to 1",
     KvUsage}};

constexpr Metric<ClusterState> kStates[] = {
    {"bfio:num_requests_running", kGauge, "", "requests that hold a slot or are in flight to one", Running},
    {"bfio:num_requests_waiting", kGauge, "", "requests in the waiting pool", "waiting_requests"},
    {"bfio:max_requests_waiting", kGauge, "", "size of the waiting pool (--max_waiting)",
     "max_waiting_requests"},
    {"bfio:epoch", kGauge, "", "epoch number, the largest of all groups; grows whenever a group re-forms",
     "epoch"},
    {"bfio:ranks", kGauge, "", "ranks of all groups",
     [](const ClusterState& s) { return OverRanks(s, One, Sum); }},
    {"bfio:expected_workers", kGauge, "", "ranks that readiness waits for (--min_ranks in each of --groups)",
     "expected_workers"},
    {"bfio:uptime_seconds", kGauge, "", "time since the router started", "uptime.seconds"},
    {"bfio:max_load_tokens", kGauge, "", "current largest load of a rank: resident KV tokens",
     [](const ClusterState& s) { return OverRanks(s, Load, Max); }},
    {"bfio:mean_load_tokens", kGauge, "", "current mean load of the ranks", MeanLoad},
    {"bfio:min_load_tokens", kGauge, "", "current smallest load of a rank",
     [](const ClusterState& s) { return OverRanks(s, Load, Min); }},
    {"bfio:idle_fraction", kGauge, "", "current share of the ranks' work time lost to imbalance: 1 - balance",
     [](const ClusterState& s) { return 1 - Balance(s); }},
    {"bfio:steps_total", kCounter, "", "steps that all ranks reported", "steps.steps"},
    {"bfio:idle_tokens_total", kCounter, "",
     "idle work: sum over steps of (ranks * largest load - sum of loads)", "steps.imbalance_tokens"},
    {"bfio:step_max_load_tokens_total", kCounter, "",
     "sum over steps of the largest load; idle_tokens_total / (ranks * this) is the idle fraction of a "
     "period",
     "steps.max_load_tokens"},
    {"bfio:step_mean_load_tokens_total", kCounter, "", "sum over steps of the mean load",
     "steps.mean_load_tokens"},
    {"bfio:barrier_wait_seconds_total", kCounter, "", "sum over steps and ranks of the wait at the barrier",
     "steps.barrier_wait_s"},
    {"bfio:rank_step_seconds_total", kCounter, "",
     "sum over steps and ranks of gap + local work + barrier wait; barrier_wait / this is the barrier "
     "wait fraction",
     "steps.rank_step_s"},
    {"bfio:slowest_local_seconds_total", kCounter, "", "sum over steps of the slowest rank's local work",
     "steps.max_local_s"},
    {"bfio:saturated_steps_total", kCounter, "", "steps in which every slot of every rank was taken",
     "steps.saturated_steps"},
    {"bfio:silent_ranks_total", kCounter, "",
     "ranks disconnected because they reported no step in time: they or their engine hang",
     "steps.silent_ranks"},
    {"bfio:generation_tokens_total", kCounter, "", "tokens that the workers generated",
     "steps.generated_tokens"},
    {"bfio:drift_tokens_total", kCounter, "",
     "sum over steps and ranks of the difference between a rank's load as the router counts it and as the "
     "rank reports it",
     "steps.drift_tokens"},
    {"bfio:decisions_total", kCounter, "", "decisions of the policy", "steps.decisions"},
    {"bfio:decisions_stopped_early_total", kCounter, "",
     "decisions whose search ended at the limit of --decide_budget_ms", "steps.decisions_stopped_early"},
    {"bfio:late_plans_total", kCounter, "", "plans that were applied after their step", "steps.late_plans"},
    {"bfio:requests_accepted_total", kCounter, "", "requests admitted", "requests.accepted"},
    {"bfio:request_success_total", kCounter, "", "requests completed", "requests.completed"},
    {"bfio:requests_replayed_total", kCounter, "", "placements repeated because a worker was lost",
     "requests.replayed"},
    {"bfio:agent_calls_total", kCounter, "", "requests that are calls of agents (parent_id)",
     "requests.agent_calls"},
    {"bfio:agent_calls_refused_total", kCounter, "",
     "calls of agents refused because their parent's deadline had passed or could not be met",
     "requests.refused_parent_deadline"},
    {"bfio:requests_preempted_total", kCounter, "",
     "requests preempted by a worker whose KV ran out, and placed again", "requests.preempted"},
    {"bfio:requests_refused_by_workers_total", kCounter, "",
     "requests that a worker refused, for lack of KV or by its own admission, and that were placed again",
     "requests.refused_by_workers"},
    {"bfio:prefill_prompts_waiting", kGauge, "",
     "prompts that wait for a rank that computes them for others (disaggregated prefill)",
     "hand_offs.prompts_waiting"},
    {"bfio:prefill_prompts_under_way", kGauge, "", "prompts that such ranks have",
     "hand_offs.prompts_under_way"},
    {"bfio:hand_offs_waiting", kGauge, "", "computed prompts that wait for a rank that decodes",
     "hand_offs.waiting"},
    {"bfio:hand_offs_oldest_seconds", kGauge, "", "how long the oldest of them has waited; 20 s is the most",
     "hand_offs.oldest_s"},
    {"bfio:promised_slots", kGauge, "",
     "slots of ranks that decode, promised to prompts that other ranks compute or have computed",
     "hand_offs.promised_slots"},
    {"bfio:promised_kv_tokens", kGauge, "", "the same of their KV tokens", "hand_offs.promised_kv_tokens"},
    {"bfio:prompts_handed_over_total", kCounter, "",
     "prompts that one rank computed for another (disaggregated prefill)", "requests.handed_over"},
    {"bfio:hand_offs_expired_total", kCounter, "",
     "prompts handed over that waited too long for a rank, and were computed again",
     "requests.hand_offs_expired"},
    {"bfio:hand_offs_failed_total", kCounter, "",
     "prompts handed over that their rank could not use, and that were computed again",
     "requests.hand_offs_failed"},
    {"bfio:prompts_not_handed_over_total", kCounter, "",
     "prompts left to the rank that decodes, because it computes them sooner (--hand_over=by_cost)",
     "requests.not_handed_over"},
    {"bfio:replays_refused_total", kCounter, "", "requests that lost their worker and could not be replayed",
     "requests.replays_refused"},
    {"bfio:suspects_ended_total", kCounter, "",
     "requests that were ended because several workers failed while running them", "requests.suspects_ended"},
    {"bfio:streams_resumed_total", kCounter, "", "streams that their client resumed", "requests.resumed"},
    {"bfio:resumes_refused_total", kCounter, "", "resumes that were refused", "requests.resume_refused"},
    {"bfio:resumes_expired_total", kCounter, "", "requests that no client resumed in time",
     "requests.resume_expired"},
    {"bfio:requests_recovered_total", kCounter, "", "requests recovered from workers of an earlier router",
     "requests.recovered"},
    {"bfio:requests_restarted_total", kCounter, "",
     "resumable requests that no worker held after a restart of the router, and that their client started "
     "again",
     "requests.restarted"},
    {"bfio:queue_timeouts_total", kCounter, "",
     "accepted requests that ended because they were not placed within --max_queue_time; part of the "
     "failed ones",
     "requests.queue_timeouts"},
    {"bfio:slow_readers_total", kCounter, "",
     "clients disconnected because they read their tokens too slowly", "requests.slow_readers"},
    {"bfio:tokens_lost_total", kCounter, "",
     "tokens that workers generated and no stream delivered; must be 0", "requests.tokens_lost"},
    {"bfio:tokens_duplicated_total", kCounter, "", "tokens that workers sent twice; must be 0",
     "requests.tokens_duplicated"},
    {"bfio:waiting_prompt_bytes", kGauge, "",
     "prompts of requests that have no token yet; limited by --request_memory_mb",
     "process.waiting_prompt_bytes"},
    {"bfio:replay_bytes", kGauge, "",
     "prompts and tokens kept for replays and resumes; limited by --request_memory_mb",
     "process.replay_bytes"},
    {"bfio:event_queue_depth", kGauge, "", "events in the decision thread's queue when it last read it",
     "process.event_queue_depth"},
    {"bfio:decision_log_ended", kGauge, "", "1: the decision log has ended before the router",
     "process.decision_log_ended"},
    {"bfio:worker_message_bytes", kGauge, "", "messages from workers that the router has not processed yet",
     "process.worker_message_bytes"},
    {"bfio:worker_queue_bytes", kGauge, "", "messages to workers that have not been written yet",
     "process.worker_queue_bytes"},
    {"bfio:tls_handshakes_failed_total", kCounter, "", "failed TLS handshakes at the gRPC ports",
     "process.handshakes_failed"},
    {"bfio:log_lines_dropped_total", kCounter, "",
     "log lines dropped because standard error was not read in time", "process.log_lines_dropped"},
    {"bfio:resident_memory_bytes", kGauge, "", "resident memory of the router's process",
     "process.resident_bytes"},
};

constexpr Metric<WorkerState> kRanks[] = {
    {"bfio:load_tokens", kGauge, "group, rank",
     "the rank's load: resident KV tokens, as the router counts them", Load},
    {"bfio:rank_requests_running", kGauge, "group, rank", "requests active on the rank", "active_requests"},
    {"bfio:rank_requests_inflight", kGauge, "group, rank", "requests in flight to the rank",
     "inflight_requests"},
    {"bfio:rank_slots", kGauge, "group, rank", "the rank's slots", "slots"},
    {"bfio:kv_cache_usage_perc", kGauge, "group, rank", "share of the rank's KV tokens in use, 0 to 1",
     [](const WorkerState& w) { return w.kv_tokens() == 0 ? 0 : Load(w) / double(w.kv_tokens()); }},
    {"bfio:rank_kv_reserved_tokens", kGauge, "group, rank",
     "KV tokens that the rank's requests reserve: prompt and max_new_tokens of each. Requests wait while "
     "what is left is too small for them, even if slots are free",
     "reserved_kv_tokens"},
    {"bfio:rank_kv_capacity_tokens", kGauge, "group, rank", "the rank's capacity in KV tokens", "kv_tokens"},
    {"bfio:rank_draining", kGauge, "group, rank", "1 while the rank takes no new requests",
     [](const WorkerState& w) { return w.phase() == v1::WORKER_PHASE_DRAINING ? 1.0 : 0.0; }},
    {"bfio:rank_pending_prefill_tokens", kGauge, "group, rank",
     "prompt tokens that the rank has not computed yet, with chunked prefill", "pending_prefill_tokens"},
    {"bfio:rank_prefill_tokens_total", kCounter, "group, rank", "prompt tokens that the rank has computed",
     "prefill_tokens"},
    {"bfio:rank_extra_slots", kGauge, "group, rank",
     "engines only: requests that may wait for a slot in the engine; negative: slots that other clients "
     "of the engine use",
     "extra_slots"},
    {"bfio:rank_engine_requests", kGauge, "group, rank",
     "engines only: requests that the engine reports for the rank; 0: not reported", "engine_requests"},
    {"bfio:rank_engine_tokens", kGauge, "group, rank",
     "engines only: tokens in the KV cache that the engine reports for the rank; 0: not reported",
     "engine_tokens"},
    {"bfio:rank_prefix_cache_queries_total", kCounter, "group, rank",
     "engines only: prompt tokens of the rank's requests that have begun to generate",
     "prefix_cache_queries"},
    {"bfio:rank_prefix_cache_hits_total", kCounter, "group, rank",
     "engines only: those of rank_prefix_cache_queries_total that the engine reports as found in its "
     "prefix cache",
     "prefix_cache_hits"},
    {"bfio:straggler_steps_total", kCounter, "group, rank",
     "steps of this epoch in which the rank's local work was the longest", "straggler_steps"},
};

constexpr Metric<ClusterState> kDistributions[] = {
    {"bfio:request_queue_time_seconds", kHistogram, "", "time from acceptance to the first placement",
     "latencies.queue_time_s"},
    {"bfio:time_to_first_token_seconds", kHistogram, "", "time from acceptance to the first token",
     "latencies.time_to_first_token_s"},
    {"bfio:inter_token_latency_seconds", kHistogram, "", "time between two tokens of a request",
     "latencies.inter_token_s"},
    {"bfio:time_per_output_token_seconds", kHistogram, "",
     "time per output token of completed requests: (last token - first token) / (tokens - 1)",
     "latencies.time_per_output_token_s"},
    {"bfio:e2e_request_latency_seconds", kHistogram, "",
     "time of completed requests from acceptance to the end", "latencies.end_to_end_s"},
    {"bfio:request_prompt_tokens", kHistogram, "", "prompt lengths of completed requests",
     "latencies.prompt_tokens"},
    {"bfio:request_generation_tokens", kHistogram, "", "output lengths of completed requests",
     "latencies.output_tokens"},
    {"bfio:step_local_seconds", kHistogram, "", "time of a rank's local work in a step",
     "step_times.local_s"},
    {"bfio:step_barrier_wait_seconds", kHistogram, "", "time that a rank waits at a step's barrier",
     "step_times.barrier_wait_s"},
    {"bfio:step_gap_seconds", kHistogram, "", "time between a barrier and the rank's next local work",
     "step_times.gap_s"},
    {"bfio:decide_seconds", kHistogram, "", "time that the policy takes for a decision",
     "step_times.decide_s"},
};

constexpr ReasonMetric kReasons[] = {
    {{"bfio:requests_ended_total", kCounter, "outcome",
      "accepted requests that ended: completed, cancelled (by client, deadline or disconnect), aborted (by "
      "Abort), failed (any other error)"},
     {{"completed", "completed"}, {"cancelled", "cancelled"}, {"aborted", "aborted"}, {"failed", "failed"}}},
    {{"bfio:requests_refused_total", kCounter, "reason",
      "requests refused at admission: pool_full, invalid, tenant (its limits), memory (the workers' KV is "
      "reserved)"},
     {{"pool_full", "refused_pool_full"},
      {"invalid", "refused_invalid"},
      {"tenant", "refused_tenant"},
      {"memory", "refused_memory"}}},
    {{"bfio:first_token_objectives_total", kCounter, "result",
      "first tokens of requests that have an objective for them: met or missed"},
     {{"met", "ttft_objectives_met"}, {"missed", "ttft_objectives_missed"}}},
};

constexpr Metric<v1::TenantTotals> kTenants[] = {
    {"bfio:tenant_requests_accepted_total", kCounter, "tenant",
     "requests admitted; tenants beyond the first 64 share \"other\", here and below", "accepted"},
    {"bfio:tenant_requests_completed_total", kCounter, "tenant", "requests completed", "completed"},
    {"bfio:tenant_prompt_tokens_total", kCounter, "tenant", "prompt tokens of admitted requests",
     "prompt_tokens"},
    {"bfio:tenant_generation_tokens_total", kCounter, "tenant", "tokens delivered to clients",
     "generated_tokens"},
};

constexpr Metric<v1::PortState> kPorts[] = {
    {"bfio:connections", kGauge, "port", "open connections to the gRPC port", "connections"},
    {"bfio:unauthenticated_connections", kGauge, "port",
     "open connections without an authenticated call so far", "unauthenticated_connections"},
    {"bfio:connections_refused_total", kCounter, "port", "connections refused because too many were open",
     "connections_refused"},
    {"bfio:connections_dropped_total", kCounter, "port",
     "connections closed because they exceeded a limit on bytes or time without an authenticated call",
     "connections_dropped"},
    {"bfio:logins_refused_total", kCounter, "port",
     "calls refused because of their token, certificate or role; calls over HTTP count as port admin",
     "logins_refused"},
    {"bfio:streams", kGauge, "port", "open streams of clients, workers and WatchSteps callers", "streams"},
    {"bfio:calls_receiving", kGauge, "port", "calls whose first message is being received",
     "calls_receiving"},
    {"bfio:calls_waiting", kGauge, "port", "calls that wait until their first message can be received",
     "calls_waiting"},
    {"bfio:calls_timed_out_total", kCounter, "port",
     "calls ended because their first message did not arrive within 10 s", "calls_timed_out"},
    {"bfio:certificate_expiry_timestamp_seconds", kGauge, "port",
     "time at which the port's certificate expires, in seconds since 1970; 0: no certificate",
     "certificate_expiry_s"},
};

constexpr Metric<v1::EnergyTotals> kEnergy[] = {
    {"bfio:energy_busy_joules_total", kCounter, "",
     "energy that the workers' devices used while they computed, each device counted once; absent without "
     "an energy meter, like the next two",
     "busy_j"},
    {"bfio:energy_barrier_joules_total", kCounter, "",
     "energy that the workers' devices used while they waited within steps", "barrier_j"},
    {"bfio:energy_parked_joules_total", kCounter, "",
     "energy that the workers' devices used outside of steps", "parked_j"},
};

constexpr MetricInfo kUptime = {"bfio:uptime_seconds", kGauge, "", "time since the router started"};
constexpr MetricInfo kPlacementRule = {
    "bfio:placement_rule", kGauge, "group, rule",
    "1 for the placement rule that bf_io_auto uses while every request gets a slot, 0 for the others"};
constexpr MetricInfo kPlacementStepRatio = {
    "bfio:placement_step_ratio", kGauge, "group, rule",
    "mean step time of the rule's replayed group over that of the rule that places; also for fcfs and "
    "least_requests, which are only watched; absent where nothing is replayed"};
constexpr MetricInfo kPlacementSwitches = {"bfio:placement_switches_total", kCounter, "group",
                                           "changes of the placement rule"};

constexpr MetricInfo kStepPredictedRatio = {"bfio:step_predicted_ratio", kGauge, "group",
                                            "time of recent steps as the fitted cost predicts it, over the "
                                            "measured time; far from 1: the fit is wrong; "
                                            "absent where the batches of all ranks are not known"};

void AddGroup(const v1::GroupState& group, Exposition& out) {
  if (group.has_step_predicted_ratio())
    out.Add(kStepPredictedRatio, group.step_predicted_ratio(), {group.name()});
  if (!group.has_placement()) return;
  const v1::PlacementState& placement = group.placement();
  if (placement.candidates().empty()) out.Add(kPlacementRule, 1, {group.name(), placement.rule()});
  for (const v1::PlacementState::Candidate& candidate : placement.candidates()) {
    out.Add(kPlacementRule, candidate.rule() == placement.rule() ? 1 : 0, {group.name(), candidate.rule()});
    out.Add(kPlacementStepRatio, candidate.step_ratio(), {group.name(), candidate.rule()});
  }
  for (const v1::PlacementState::Candidate& watched : placement.watched())
    out.Add(kPlacementStepRatio, watched.step_ratio(), {group.name(), watched.rule()});
  out.Add(kPlacementSwitches, static_cast<double>(placement.switches()), {group.name()});
}

// Rank numbers change with every epoch, so alerts on a rank need this metric to find the machine.
constexpr MetricInfo kRankInfo = {"bfio:rank_info", kGauge, "group, rank, worker",
                                  "1; the label worker is the worker that has the rank in the current epoch: "
                                  "its --worker_id, or for an engine vllm://HOST:PORT#RANK"};
constexpr MetricInfo kBuildInfo = {"bfio:build_info", kGauge, "version",
                                   "1; the label is the router's version"};
constexpr MetricInfo kIsLeader = {"bfio:is_leader", kGauge, "",
                                  "1: this router leads; 0: it stands by (--election_etcd)"};
constexpr MetricInfo kPolicyInfo = {"bfio:policy_info", kGauge, "policy",
                                    "1; the label is the acting policy"};

}  // namespace

absl::Span<const MetricInfo> RouterMetrics() {
  static const auto* const all = [] {
    auto* infos = new std::vector<MetricInfo>{kBuildInfo,         kIsLeader,           kPolicyInfo,
                                              kPlacementRule,     kPlacementStepRatio, kPlacementSwitches,
                                              kStepPredictedRatio};
    for (const auto& metric : kVllm) infos->push_back(metric.info);
    for (const auto& metric : kStates) infos->push_back(metric.info);
    for (const auto& metric : kReasons) infos->push_back(metric.info);
    infos->push_back(kRankInfo);
    for (const auto& metric : kRanks) infos->push_back(metric.info);
    for (const auto& metric : kDistributions) infos->push_back(metric.info);
    for (const auto& metric : kTenants) infos->push_back(metric.info);
    for (const auto& metric : kEnergy) infos->push_back(metric.info);
    for (const auto& metric : kPorts) infos->push_back(metric.info);
    return infos;
  }();
  return *all;
}

std::string MetricsText(const ClusterState& state) {
  Exposition out;
  out.Add(kBuildInfo, 1, state.version());
  out.Add(kIsLeader, 1);
  out.Add(kPolicyInfo, 1, state.policy().name());
  for (const v1::GroupState& group : state.groups()) AddGroup(group, out);
  for (const auto& metric : kVllm) out.Add(metric.info, metric.Value(state), state.served_model_name());
  for (const auto& metric : kStates) out.Add(metric.info, metric.Value(state));
  for (const auto& metric : kReasons) {
    for (const auto& [reason, path] : metric.reasons) {
      if (path != nullptr) out.Add(metric.info, NumberAt(state.requests(), path), reason);
    }
  }
  for (const WorkerState& worker : state.workers()) {
    if (!IsServing(worker)) continue;
    out.Add(kRankInfo, 1, {worker.group(), absl::StrCat(worker.rank()), worker.worker_id()});
  }
  for (const auto& metric : kRanks) {
    for (const WorkerState& worker : state.workers()) {
      if (!IsServing(worker)) continue;
      out.Add(metric.info, metric.Value(worker), {worker.group(), absl::StrCat(worker.rank())});
    }
  }
  for (const auto& metric : kDistributions) {
    const auto [at, field] = Find(state, metric.path);
    const auto& d = static_cast<const v1::Distribution&>(at->GetReflection()->GetMessage(*at, field));
    if (d.counts_size() == 0) continue;
    out.AddHistogram(metric.info, {{d.upper_bounds().data(), static_cast<size_t>(d.upper_bounds_size())},
                                   {d.counts().data(), static_cast<size_t>(d.counts_size())},
                                   d.sum()});
  }
  for (const auto& metric : kTenants) {
    for (const v1::TenantTotals& tenant : state.tenants())
      out.Add(metric.info, metric.Value(tenant), tenant.tenant());
  }
  if (state.has_energy()) {
    for (const auto& metric : kEnergy) out.Add(metric.info, metric.Value(state.energy()));
  }
  for (const auto& metric : kPorts) {
    for (const v1::PortState& port : state.ports()) out.Add(metric.info, metric.Value(port), port.port());
  }
  return out.Text();
}

std::string StandbyMetricsText(absl::string_view version, double uptime_s) {
  Exposition out;
  out.Add(kBuildInfo, 1, version);
  out.Add(kIsLeader, 0);
  out.Add(kUptime, uptime_s);
  return out.Text();
}

}  // namespace bfio::router
