#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "research/admission/commands.h"
#include "research/admission/hindsight.h"
#include "research/admission/one_worker.h"

namespace bfio::sim {
namespace {

constexpr size_t kMostOfAnInstance = 64;
constexpr int64_t kLongest = 10'000;

struct SmallInstance {
  std::vector<KvArrival> arrivals;
  AdmissionOptions options;
};

bool Whole(const nlohmann::json& value, int64_t low) {
  return value.is_number_integer() && value.get<int64_t>() >= low && value.get<int64_t>() <= kLongest;
}

absl::StatusOr<SmallInstance> ParseInstance(const std::string& line) {
  const auto refused = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  BFIO_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonObject(line, ""));
  if (!json.contains("kv_tokens") || !json.contains("requests"))
    return refused("not a JSON object with kv_tokens and requests");
  SmallInstance instance;
  if (!Whole(json["kv_tokens"], 1)) return refused("kv_tokens must be a positive whole number");
  instance.options.memory = json["kv_tokens"].get<int64_t>();
  if (json.contains("first_round_counts")) {
    if (!json["first_round_counts"].is_boolean()) return refused("first_round_counts must be true or false");
    instance.options.counts_first_round = json["first_round_counts"].get<bool>();
  }
  const nlohmann::json& requests = json["requests"];
  if (!requests.is_array() || requests.empty() || requests.size() > kMostOfAnInstance) {
    return refused(absl::StrCat("requests must be a list of 1 to ", kMostOfAnInstance, " requests"));
  }
  for (const nlohmann::json& of : requests) {
    if (!of.is_array() || of.size() != 3 || !Whole(of[0], 0) || !Whole(of[1], 0) || !Whole(of[2], 1)) {
      return refused("a request is not [ROUND, PROMPT, OUTPUT]");
    }
    const KvArrival arrival = {static_cast<double>(of[0].get<int64_t>()), of[1].get<int64_t>(),
                               of[2].get<int64_t>()};
    if (arrival.prompt + arrival.output > instance.options.memory)
      return refused("a request needs more than kv_tokens");
    if (!instance.arrivals.empty() && arrival.at < instance.arrivals.back().at) {
      return refused("the requests are not ordered by ROUND");
    }
    instance.arrivals.push_back(arrival);
  }
  return instance;
}

}  // namespace

absl::Status RunHindsightCommand(const ReadOptions& read) {
  std::string path;
  std::vector<std::string> rules = {"mc_sf_paced"};
  int64_t most_places = 1'000'000;
  bool json = true;
  OptionTable table;
  table.Add("rule", &rules, kAdmissionRules);
  table.Add("instances", &path,
            "file of instances, one JSON object per line: {\"kv_tokens\": M, \"first_round_counts\": true, "
            "\"requests\": "
            "[[ROUND, PROMPT, OUTPUT], ..]}");
  table.Add("most_places", &most_places,
            "placements that the search tries before it gives up on an instance");
  AddJson(table, json);
  read(table);
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat("--instances=", path, ": cannot be read"));
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const absl::StatusOr<SmallInstance> instance = ParseInstance(line);
    if (!instance.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", instance.status().message()));
    }
    const auto best = HindsightOptimum(instance->arrivals, instance->options, most_places);
    nlohmann::ordered_json cell = {
        {"optimum", best.has_value() ? static_cast<double>(best->total_latency) : NAN}};
    for (const std::string& rule : rules) {
      KvRunOptions options;
      options.rule = instance->options;
      BFIO_ASSIGN_OR_RETURN(const KvRun run, RunOneWorker(rule, instance->arrivals, options));
      cell[rule] = run.looped ? NAN : run.total_latency;
    }
    PrintJson(cell);
  }
  return absl::OkStatus();
}

}  // namespace bfio::sim
