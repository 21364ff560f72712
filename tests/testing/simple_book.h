// A simple request table for tests of groups.
//
// Purpose: a minimal version of router/requests as groups see it. It checks that tokens arrive completely and
// in order. Ownership: borrows cluster and checker. Threads: one.
#ifndef BFIO_TESTS_TESTING_SIMPLE_BOOK_H_
#define BFIO_TESTS_TESTING_SIMPLE_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "router/core/scheduler/cluster.h"
#include "router/group/commands.h"
#include "router/group/group_set.h"
#include "tests/testing/group_checker.h"

namespace bfio::router {

inline uint32_t TokenOf(core::RequestId id, uint32_t index) {
  return static_cast<uint32_t>(id * 1000003 + index);
}

class SimpleBook final : public RequestBook {
 public:
  struct Record {
    uint32_t prompt = 0, max_new = 0;
    bool resumable = true;
    uint32_t delivered = 0;
    // Number of delivered tokens when it was last placed.
    uint32_t placed_at = 0;
    // The model of its tokens: the router's number, and the name that its worker reported.
    uint32_t model = 0;
    std::string model_name;
  };

  SimpleBook(core::Cluster* cluster, GroupChecker* checker) : cluster_(cluster), checker_(checker) {}

  absl::Status Submit(core::RequestId id, uint32_t prompt, uint32_t max_new, bool resumable = true) {
    Record& record = live[id] = {.prompt = prompt, .max_new = max_new, .resumable = resumable};
    absl::Status status = cluster_->Apply(core::Enqueue{SpecOf(id, record)}).status;
    if (!status.ok()) live.erase(id);
    return status;
  }
  void Cancel(core::RequestId id) {
    checker_->OnCancelled(id);
    cluster_->Apply(core::Cancel{id});
    live.erase(id);
  }

  static core::RequestSpec SpecOf(core::RequestId id, const Record& record) {
    core::RequestSpec spec;
    spec.id = id;
    spec.prefill_tokens = record.prompt + record.delivered;
    spec.max_new_tokens = record.max_new - record.delivered;
    spec.generated_tokens = record.delivered;
    if (record.delivered > 0) spec.model = record.model;
    return spec;
  }

  // --- commands ---

  void OnTokens(const GeneratedTokens& made) {
    Record* record = Find(made.id);
    if (record == nullptr) return;
    for (const uint32_t token : made.tokens) {
      if (record->delivered >= record->max_new)
        checker_->Broken("a request gets no more tokens than it asked for");
      if (token != TokenOf(made.id, record->delivered))
        checker_->Broken(
            absl::StrCat("token ", record->delivered, " of request ", made.id, " is not its own"));
      ++record->delivered;
    }
  }
  void OnFinished(core::RequestId id) {
    Record* record = Find(id);
    if (record == nullptr) return;
    if (record->delivered != record->max_new) checker_->Broken("a request ends with its last token");
    Complete(id);
  }
  void OnRejected(const RequestRejected& rejected) {
    if (Find(rejected.id) == nullptr || absl::IsResourceExhausted(rejected.status)) return;
    cluster_->Apply(core::Cancel{rejected.id});
    checker_->OnCancelled(rejected.id);
    live.erase(rejected.id);
    failed[rejected.id] = rejected.status;
  }
  void PlaceAgain(core::RequestId id) {
    Record* record = Find(id);
    if (record == nullptr) return;
    ++placed_again;
    if (record->delivered >= record->max_new) return Complete(id);
    const core::RequestSpec spec = SpecOf(id, *record);
    if (!cluster_->Apply(core::Requeue{spec}).status.ok())
      checker_->Broken("the scheduler has forgotten what is lost");
  }
  // Ends requests that wait for a model that is not in `models`.
  void EndStranded(const std::map<uint32_t, std::string>& models) {
    std::erase_if(live, [&](const auto& entry) {
      const auto& [id, record] = entry;
      if (record.delivered == 0 || record.model == 0 || cluster_->LocationOf(id)) return false;
      if (models.contains(record.model)) return false;
      cluster_->Apply(core::Cancel{id});
      failed[id] = absl::FailedPreconditionError("its model is gone");
      return true;
    });
  }
  // False: no client waits for the request.
  bool OnPlaced(core::RequestId id, uint32_t model) {
    Record* record = Find(id);
    if (record == nullptr) {
      cluster_->Apply(core::Cancel{id});
      return false;
    }
    record->placed_at = record->delivered;
    if (record->delivered == 0 || record->model == 0) record->model = model;
    return true;
  }

  // --- RequestBook ---

  std::vector<core::RequestSpec> Recover(absl::string_view worker_id, std::vector<HeldRequest> held,
                                         absl::Span<const HeldActive> active) override {
    std::vector<core::RequestSpec> specs;
    for (HeldRequest& request : held) {
      if (live.contains(request.id) || completed.contains(request.id) || cluster_->Knows(request.id))
        continue;
      const auto resident =
          std::find_if(active.begin(), active.end(), [&](const HeldActive& a) { return a.id == request.id; });
      const auto known = static_cast<uint32_t>(request.tokens.size()) - request.first_index;
      if (!request.ended && (resident == active.end() || resident->generated_tokens != known)) continue;
      Record& record = live[request.id] = {.prompt = request.request.prompt_tokens,
                                           .max_new = request.request.max_new_tokens};
      record.model = request.model;
      record.delivered = static_cast<uint32_t>(request.tokens.size());
      record.placed_at = request.first_index;
      ++recovered;
      if (request.ended) {
        Complete(request.id);
      } else {
        specs.push_back(SpecOf(request.id, record));
        if (record.model == 0) checker_->Broken("a group says which model it recovers");
        if (on_recovered) on_recovered(request.id, worker_id);
      }
    }
    return specs;
  }
  std::optional<uint32_t> ReceivedSincePlaced(core::RequestId id) const override {
    const auto it = live.find(id);
    if (it == live.end()) return std::nullopt;
    return it->second.delivered - it->second.placed_at;
  }
  void OnWorkerDied(core::GroupIndex group, core::WorkerIndex worker) override {
    for (const auto& [id, record] : live) {
      if (cluster_->LocationOf(id) == core::Cluster::Location{group, worker}) died_with.push_back(id);
    }
  }
  void CountTokens(uint32_t generated, uint32_t received) override {
    lost += generated > received ? generated - received : 0;
    doubled += received > generated ? received - generated : 0;
  }

  std::map<core::RequestId, Record> live;
  std::map<core::RequestId, absl::Status> failed;
  std::map<core::RequestId, Record> completed;
  // Requests that were on a worker when it died.
  std::vector<core::RequestId> died_with;
  int64_t placed_again = 0, recovered = 0, lost = 0, doubled = 0;
  std::function<void(core::RequestId, absl::string_view)> on_recovered;

 private:
  Record* Find(core::RequestId id) {
    const auto it = live.find(id);
    return it == live.end() ? nullptr : &it->second;
  }
  void Complete(core::RequestId id) {
    completed[id] = live.at(id);
    live.erase(id);
  }

  core::Cluster* const cluster_;
  GroupChecker* const checker_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_TESTING_SIMPLE_BOOK_H_
