#include "router/app/engines.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/auth/token_file.h"
#include "common/base/annotated.h"
#include "common/base/mutex.h"
#include "common/base/peer_text.h"
#include "common/base/status_macros.h"
#include "common/net/tls.h"
#include "router/engine_link/http/http_engine.h"
#include "router/engine_link/protocol/protocol_client.h"

namespace bfio::router {
namespace {

// An answer to each of `count` questions; those that have none by then are DEADLINE_EXCEEDED.
template <typename T, typename Ask>
std::vector<absl::StatusOr<T>> AskAll(size_t count, absl::Duration patience, const Ask& ask) {
  // Callbacks may come later.
  struct Answers {
    Mutex mutex;
    std::vector<absl::StatusOr<T>> given;
    size_t missing;
  };
  const auto answers = std::make_shared<Answers>();
  answers->missing = count;
  answers->given.assign(count, absl::DeadlineExceededError("no answer"));
  for (size_t i = 0; i < count; ++i) {
    ask(i, [answers, i](absl::StatusOr<T> answer) {
      const MutexLock lock(&answers->mutex);
      answers->given[i] = std::move(answer);
      --answers->missing;
    });
  }
  const MutexLock lock(&answers->mutex);
  const auto all = +[](size_t* missing) { return *missing == 0; };
  answers->mutex.AwaitWithTimeout(absl::Condition(all, &answers->missing), patience);
  return answers->given;
}

std::string Fault(const EngineAddress& engine, const absl::Status& status) {
  const std::string text = absl::StrCat(engine.ToString(), ": ", PeerText(status.message()));
  return absl::IsUnavailable(status) ? text + " (is it started, and is this its port?)" : text;
}

// Loads by the engine's number of the rank.
std::string LineOf(const EngineAddress& engine, const EngineDescription& what, int32_t rank,
                   const absl::StatusOr<std::vector<EngineRankLoad>>& loads) {
  std::string line = absl::StrCat(engine.ToString(), " rank ", rank, ": model ", PeerText(what.model), ", ",
                                  what.slots, " slots, ", what.kv_tokens, " KV tokens",
                                  what.hands_over ? ", prompts for other servers" : "",
                                  engine.barrier.empty() ? "" : ", barrier ", engine.barrier);
  const auto of_rank = [rank](const EngineRankLoad& load) { return load.rank == rank; };
  if (loads.ok()) {
    if (const auto load = std::find_if(loads->begin(), loads->end(), of_rank); load != loads->end())
      return absl::StrCat(line, ", load ", load->load.requests, " requests and ", load->load.tokens,
                          " tokens");
  }
  return absl::StrCat(line, ", load not reported");
}

// The ranks that meet in a barrier, or all that meet in none.
struct Ranks {
  int32_t count = 0;
  // Of the model, as its servers say.
  int32_t all = 0;
};

}  // namespace

std::unique_ptr<EngineClient> NewEngineClient(const EngineAddress& engine) {
  if (engine.protocol == "http") return NewHttpEngine(engine);
  return engine.protocol == "vllm" ? NewVllmClient(engine) : NewSglangClient(engine);
}

absl::Status CheckLogins(const std::vector<EngineAddress>& engines) {
  for (const EngineAddress& engine : engines) {
    BFIO_RETURN_IF_ERROR(CheckTlsFiles(engine.tls, "engines", TlsEnd::kClient));
    if (engine.token_file.empty()) continue;
    BFIO_RETURN_IF_ERROR(Annotated("--engines", ReadTokenFile(engine.token_file).status()));
    WarnIfWorldReadable(engine.token_file);
  }
  return absl::OkStatus();
}

EngineCheck CheckEngines(const RouterOptions& options, const EngineCheckMeans& means) {
  EngineCheck check;
  std::vector<EngineAddress> engines;
  for (const EngineAddress& given : options.engines.engines) {
    const std::vector<EngineAddress> found =
        EngineList({.engines = {given}}, means.resolve, means.resolve_pool).Resolve();
    if (found.empty()) check.faults.push_back(absl::StrCat(given.ToString(), ": the name has no address"));
    engines.insert(engines.end(), found.begin(), found.end());
  }
  std::vector<std::unique_ptr<EngineClient>> clients;
  for (const EngineAddress& engine : engines) clients.push_back(means.make_client(engine));
  const absl::Duration patience = options.step_timeout;
  auto descriptions = AskAll<EngineDescription>(
      engines.size(), patience + means.grace,
      [&](size_t i, auto done) { clients[i]->Describe(patience, std::move(done)); });
  const auto loads =
      AskAll<std::vector<EngineRankLoad>>(engines.size(), patience + means.grace, [&](size_t i, auto done) {
        if (!descriptions[i].ok()) return done(descriptions[i].status());
        clients[i]->GetLoads(patience, std::move(done));
      });
  std::map<std::string, Ranks> groups;
  const EngineAddress* first = nullptr;
  std::string model;
  for (size_t i = 0; i < engines.size(); ++i) {
    const EngineAddress& engine = engines[i];
    absl::Status status = descriptions[i].status();
    if (status.ok()) status = Complete(*descriptions[i]);
    if (!status.ok()) {
      check.faults.push_back(Fault(engine, status));
      continue;
    }
    const EngineDescription& what = *descriptions[i];
    for (int32_t rank = what.first_rank; rank < what.first_rank + what.ranks; ++rank)
      check.ranks.push_back(LineOf(engine, what, rank, loads[i]));
    if (std::exchange(first, first == nullptr ? &engine : first) == nullptr) model = what.model;
    if (what.model != model) {
      check.faults.push_back(absl::StrCat(engine.ToString(), ": model ", PeerText(what.model), ", but ",
                                          first->ToString(), " has ", PeerText(model)));
    }
    if (what.hands_over) continue;
    Ranks& ranks = groups[engine.barrier];
    ranks.count += what.ranks;
    ranks.all = std::max(ranks.all, what.all_ranks);
  }
  for (const auto& [barrier, ranks] : groups) {
    const std::string who = barrier.empty() ? "the engines" : absl::StrCat("barrier ", barrier);
    if (ranks.count < ranks.all) {
      check.faults.push_back(
          absl::StrCat(who, ": ", ranks.count, " of the model's ", ranks.all, " ranks are listed"));
    }
    if (barrier.empty() ? ranks.count < options.workers : ranks.count != options.workers) {
      check.faults.push_back(
          absl::StrCat(who, ": ", ranks.count, " ranks found, but --min_ranks=", options.workers));
    }
  }
  return check;
}

}  // namespace bfio::router
