// Snapshots in one or two lines, and a policy's decision in a form that is easy to compare.
//
// Purpose: tests of policies contain only the case and the expected decision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "router/core/policy/policy.h"
#include "router/core/prefix/prefix_view.h"

namespace bfio::core {

inline constexpr int64_t kAmpleKv = int64_t{1} << 40;

// From "name", "name:objective", "name:objective:horizon" or "name:objective:horizon:discount".
inline std::unique_ptr<Policy> PolicyNamed(const std::string& text, PolicyOptions options = {}) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() > 1) options.objective = parts[1];
  if (parts.size() > 2) (void)absl::SimpleAtoi(parts[2], &options.horizon);
  if (parts.size() > 3) (void)absl::SimpleAtod(parts[3], &options.discount);
  return *MakePolicy(parts[0], options);
}

// A snapshot that owns its data. Requests are added oldest first.
class PolicyCase {
 public:
  PolicyCase& Worker(int64_t load, int32_t free_slots, int64_t free_kv = kAmpleKv, int32_t active = 0) {
    workers_.push_back({load, active, free_slots, free_kv});
    return *this;
  }
  // Reserves as many KV tokens as its prefill, unless `kv` is given.
  PolicyCase& Waiting(int64_t prefill, int64_t age = 0, int64_t kv = 0, int32_t priority = 0) {
    WaitingView view = {.id = waiting_.size() + 1,
                        .prefill_tokens = prefill,
                        .kv_reserve_tokens = kv > 0 ? kv : prefill,
                        .enqueued_step = kStep - age,
                        .priority = priority};
    waiting_.push_back(view);
    return *this;
  }
  // The decision is made so many steps later.
  PolicyCase& Later(int64_t steps) {
    step_ += steps;
    return *this;
  }
  PolicyCase& WaitingAll(const std::vector<int64_t>& prefills) {
    for (int64_t prefill : prefills) Waiting(prefill);
    return *this;
  }

  // The methods below concern the worker that was added last.
  PolicyCase& TotalKv(int64_t tokens) {
    workers_.back().total_kv_tokens = tokens;
    return *this;
  }
  PolicyCase& MaxSequence(int64_t tokens) {
    workers_.back().max_sequence_tokens = tokens;
    return *this;
  }
  PolicyCase& TimePerToken(double time) {
    workers_.back().time_per_token = time;
    return *this;
  }
  PolicyCase& TimeOffset(double time) {
    workers_.back().time_offset = time;
    return *this;
  }
  PolicyCase& Draining() {
    workers_.back().accepts_new = false;
    return *this;
  }
  // The methods below concern the request that was added last.
  // Its row of the curves.
  PolicyCase& Curve(int32_t curve) {
    waiting_.back().curve = curve;
    return *this;
  }
  // Names of its prompt's blocks.
  PolicyCase& Prefix(std::vector<uint64_t> blocks) {
    blocks_.push_back(std::make_shared<const std::vector<uint64_t>>(std::move(blocks)));
    waiting_.back().prefix = *blocks_.back();
    return *this;
  }
  // All of its prompt but the last token, by another rank.
  PolicyCase& ComputedElsewhere() {
    waiting_.back().computed_tokens = waiting_.back().prefill_tokens - 1;
    return *this;
  }
  PolicyCase& Tenant(uint32_t tenant, double excess_tokens = 0) {
    waiting_.back().tenant = tenant;
    waiting_.back().tenant_excess_tokens = excess_tokens;
    return *this;
  }
  // An outlook: `load` by worker and step ahead, `curves` by curve and step ahead, H + 1 entries per row.
  PolicyCase& Ahead(int32_t horizon, const std::vector<double>& load, const std::vector<double>& curves) {
    horizon_ = horizon;
    load_ = load;
    curves_ = curves;
    return *this;
  }

  // Data of an admission rule that looks ahead: `capacity` by worker, `need` by request, `times` * `ways`
  // entries per row.
  PolicyCase& Kv(int32_t times, int32_t ways, const std::vector<int64_t>& capacity,
                 const std::vector<int64_t>& need) {
    times_ = times;
    ways_ = ways;
    capacity_ = capacity;
    need_ = need;
    for (size_t i = 0; i < waiting_.size(); ++i) waiting_[i].kv_need = static_cast<int32_t>(i);
    return *this;
  }

  // Gives the present workers large prefix caches; copies of the case share them.
  PolicyCase& Caches(double output_tokens = 0) {
    prefixes_ = std::make_shared<Prefixes>();
    prefixes_->view = {.caches = &prefixes_->caches, .output_tokens = output_tokens};
    prefixes_->view.pending.assign(workers_.size(), 0);
    return OpenCaches(true);
  }
  PolicyCase& OpenCaches(bool caches) {
    std::vector<PrefixCaches::Member> members;
    for (size_t g = 0; g < workers_.size(); ++g)
      members.push_back({g + 1, caches, 1000 * kPrefixBlockTokens});
    prefixes_->caches.Open(members);
    return *this;
  }
  // The worker has computed a prompt with these blocks, and some tokens more.
  PolicyCase& Cached(WorkerIndex worker, const std::vector<uint64_t>& blocks) {
    prefixes_->caches.Placed(worker, blocks, (static_cast<int64_t>(blocks.size()) + 1) * kPrefixBlockTokens);
    return *this;
  }
  // Nothing was found in the worker's cache, however often it was expected.
  PolicyCase& CacheFails(WorkerIndex worker) {
    for (int i = 0; i < 200; ++i) prefixes_->caches.Observed(worker, 2 * kPrefixBlockTokens, 0);
    return *this;
  }
  PrefixView& prefixes() { return prefixes_->view; }
  // Borrowed.
  PolicyCase& Prefill(const PrefillView* prefill) {
    prefill_ = prefill;
    return *this;
  }
  // The reference wait of the classes 0 and 1.
  PolicyCase& FirstCome(int64_t p99) {
    first_come_ = {{1, p99, p99}, {0, p99, p99}};
    return *this;
  }

  Snapshot View() const {
    Snapshot view = {
        step_, workers_, waiting_, 0, {horizon_, load_, curves_}, {times_, ways_, capacity_, need_}};
    view.first_come = first_come_;
    view.prefill = prefill_;
    view.prefixes = prefixes_ == nullptr ? nullptr : &prefixes_->view;
    return view;
  }

  Decision Call(Policy& policy) const {
    Decision decision;
    policy.Decide(View(), decision);
    return decision;
  }
  // By waiting index: the worker of the request, or -1.
  std::vector<int32_t> WorkersOf(const Decision& decision) const {
    std::vector<int32_t> result(waiting_.size(), -1);
    for (const Assignment& assignment : decision.assignments)
      result[assignment.waiting_index] = assignment.worker;
    return result;
  }
  std::vector<int32_t> Decide(Policy& policy) const { return WorkersOf(Call(policy)); }
  std::vector<int32_t> Decide(const std::string& policy) const { return Decide(*PolicyNamed(policy)); }

 private:
  struct Prefixes {
    PrefixCaches caches;
    PrefixView view;
  };
  static constexpr int64_t kStep = 1'000'000;
  int64_t step_ = kStep;
  std::vector<WorkerView> workers_;
  std::vector<WaitingView> waiting_;
  int32_t horizon_ = 0;
  std::vector<double> load_, curves_;
  int32_t times_ = 0, ways_ = 0;
  std::vector<int64_t> capacity_, need_;
  std::vector<std::shared_ptr<const std::vector<uint64_t>>> blocks_;
  std::shared_ptr<Prefixes> prefixes_;
  const PrefillView* prefill_ = nullptr;
  std::vector<ClassWait> first_come_;
};

// Workers of these loads and free slots, and requests with prompts of these tokens.
inline PolicyCase CaseOf(const std::vector<std::pair<int64_t, int32_t>>& workers,
                         const std::vector<int64_t>& prefills = {}) {
  PolicyCase result;
  for (const auto& [load, free_slots] : workers) result.Worker(load, free_slots);
  return result.WaitingAll(prefills);
}

}  // namespace bfio::core
