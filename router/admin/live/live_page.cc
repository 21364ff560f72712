#include "router/admin/live/live_page.h"

#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/json/json_reader.h"
#include "nlohmann/json.hpp"
#include "router/admin/live/page_files.h"
#include "router/admin/state_metrics.h"

namespace bfio::router {
namespace {

constexpr char kJson[] = "application/json";

HttpReply ReplyOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return {200, kJson, "{}\n"};
    case absl::StatusCode::kInvalidArgument:
      return {400, "text/plain; charset=utf-8", absl::StrCat(status.message(), "\n")};
    case absl::StatusCode::kNotFound:
      return {404, "text/plain; charset=utf-8", absl::StrCat(status.message(), "\n")};
    case absl::StatusCode::kFailedPrecondition:
      return {409, "text/plain; charset=utf-8", absl::StrCat(status.message(), "\n")};
    default: return {503, "text/plain; charset=utf-8", absl::StrCat(status.message(), "\n")};
  }
}

// Parses `body`; INVALID_ARGUMENT with the reason.
template <typename Message>
absl::StatusOr<Message> Parse(const std::string& body) {
  Message message;
  const auto parsed = google::protobuf::util::JsonStringToMessage(body, &message);
  if (!parsed.ok())
    return absl::InvalidArgumentError(absl::StrCat("cannot parse the request's JSON: ", parsed.ToString()));
  return message;
}

HttpServer::Handler File(const char* type, absl::string_view text) {
  return [type, body = std::string(text)](const HttpRequest&) { return HttpReply{200, type, body}; };
}

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

std::string SamplesJson(const std::vector<std::shared_ptr<const StepSample>>& samples) {
  nlohmann::json array = nlohmann::json::array();
  for (const auto& sample : samples) {
    array.push_back({{"n", sample->number},
                     {"group", sample->group},
                     {"t", absl::ToUnixMillis(sample->time)},
                     {"epoch", sample->epoch},
                     {"step", sample->step},
                     {"load", sample->load_tokens},
                     {"active", sample->active_requests},
                     {"prefill", sample->prefill_tokens},
                     {"waiting", sample->waiting_requests},
                     {"steps", sample->steps},
                     {"assigned", sample->assigned},
                     {"idle", sample->idle_fraction},
                     {"wait", sample->wait_fraction},
                     {"step_s", sample->step_s},
                     {"straggler", sample->straggler ? nlohmann::json(*sample->straggler) : nullptr}});
  }
  return JsonText(array);
}

void AddLivePage(HttpServer& server, std::shared_ptr<const LiveHistory> history, LiveSource source) {
  const auto shared = std::make_shared<const LiveSource>(std::move(source));
  // No authentication for the page itself, because a browser needs the page to enter the token.
  constexpr auto kEverybody = HttpServer::Access::kEverybody;
  server.Get("/", File("text/html; charset=utf-8", page::kIndexHtml), kEverybody);
  server.Get("/live.css", File("text/css; charset=utf-8", page::kLiveCss), kEverybody);
  static constexpr char kScript[] = "text/javascript; charset=utf-8";
  server.Get("/figures.js", File(kScript, page::kFiguresJs), kEverybody);
  server.Get("/charts.js", File(kScript, page::kChartsJs), kEverybody);
  server.Get("/live.js", File(kScript, page::kLiveJs), kEverybody);
  const auto probe = [shared](std::function<absl::Status()> LiveSource::*check) {
    return [shared, check](const HttpRequest&) {
      if (const absl::Status status = ((*shared).*check)(); !status.ok()) return ReplyOf(status);
      return HttpReply{200, "text/plain; charset=utf-8", "ok\n"};
    };
  };
  server.Get("/healthz", probe(&LiveSource::alive), kEverybody);
  server.Get("/readyz", probe(&LiveSource::ready), kEverybody);
  server.Get("/metrics", [shared](const HttpRequest&) {
    const absl::StatusOr<v1::ClusterState> state = shared->state();
    if (!state.ok()) return ReplyOf(state.status());
    return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8", MetricsText(*state)};
  });
  server.Get("/api/state", [shared](const HttpRequest&) {
    const absl::StatusOr<v1::ClusterState> state = shared->state();
    if (!state.ok()) return ReplyOf(state.status());
    HttpReply reply{200, kJson, ""};
    const auto written = google::protobuf::util::MessageToJsonString(*state, &reply.body);
    return written.ok() ? reply : HttpReply{500, "text/plain; charset=utf-8", written.ToString()};
  });
  server.Get("/api/page", [shared](const HttpRequest&) {
    const absl::StatusOr<v1::ClusterState> state = shared->state();
    if (!state.ok()) return ReplyOf(state.status());
    return HttpReply{200, kJson, PageStateJson(*state)};
  });
  server.Get("/api/policies", [shared](const HttpRequest&) {
    return HttpReply{200, kJson, JsonText(nlohmann::json(shared->policies))};
  });
  server.GetStream("/api/events", "text/event-stream", [history](const HttpRequest& request) {
    uint64_t after = 0;
    const auto asked = request.query.find("after");
    if (asked != request.query.end() && !absl::SimpleAtoi(asked->second, &after)) after = 0;
    return [history, after]() mutable -> std::optional<std::string> {
      const auto samples = history->After(after, absl::Seconds(1));
      if (history->closed()) return std::nullopt;
      // An SSE comment keeps traffic on the connection, so that a disconnected reader is detected.
      if (samples.empty()) return ":\n\n";
      after = samples.back()->number;
      return absl::StrCat("data: ", SamplesJson(samples), "\n\n");
    };
  });
  if (shared->set_policy == nullptr) return;
  server.Post("/api/policy", [shared](const HttpRequest& request) {
    const absl::StatusOr<v1::PolicySetting> setting = Parse<v1::PolicySetting>(request.body);
    return ReplyOf(setting.ok() ? shared->set_policy(*setting, request.caller) : setting.status());
  });
  server.Post("/api/drain", [shared](const HttpRequest& request) {
    const absl::StatusOr<v1::DrainWorkerRequest> drain = Parse<v1::DrainWorkerRequest>(request.body);
    return ReplyOf(drain.ok() ? shared->drain_worker(drain->worker_id(), request.caller) : drain.status());
  });
  server.Post("/api/undrain", [shared](const HttpRequest& request) {
    const absl::StatusOr<v1::UndrainWorkerRequest> undrain = Parse<v1::UndrainWorkerRequest>(request.body);
    return ReplyOf(undrain.ok() ? shared->undrain_worker(undrain->worker_id(), request.caller)
                                : undrain.status());
  });
}

std::string PageStateJson(const v1::ClusterState& state) {
  json page = {
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
  if (state.has_hand_offs()) {
    const v1::HandOffState& of = state.hand_offs();
    page["handOffs"] = {{"promptsWaiting", of.prompts_waiting()},
                        {"promptsUnderWay", of.prompts_under_way()},
                        {"waiting", of.waiting()},
                        {"oldestS", of.oldest_s()},
                        {"promisedSlots", of.promised_slots()},
                        {"promisedKvTokens", of.promised_kv_tokens()}};
  }
  // Invalid UTF-8 in a name is replaced, because it would throw otherwise.
  return JsonText(page);
}

}  // namespace bfio::router
