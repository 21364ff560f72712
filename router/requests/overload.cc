#include "router/requests/overload.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/out_of_range.h"
#include "router/core/scheduler/request_pool.h"

namespace bfio::router {
namespace {

// KV tokens that the request may need: its prompt, plus the output length that its client predicts or allows.
int64_t KvOf(const ClientRequest& request) {
  const uint32_t predicted = request.predicted_output_tokens.value_or(request.max_new_tokens);
  return int64_t{request.prompt_tokens} + std::min(predicted, request.max_new_tokens);
}

}  // namespace

absl::Status OverloadControl::CheckPool(const std::string& tenant, int64_t outputs, bool held) {
  const int64_t most = held ? core::RequestPool::MostForRanks(options_.max_waiting) : options_.max_waiting;
  if (outputs > most) {
    return OutOfRange("n", outputs,
                      absl::StrCat("at most ", most, ", the requests that may wait ",
                                   held ? "with a data_parallel_rank" : "at a time", " (--max_waiting)"));
  }
  if (waiting_.load(std::memory_order_relaxed) + outputs <= options_.max_waiting) return absl::OkStatus();
  size_t first = 0;
  const size_t own = std::hash<std::string>()(tenant) | 1;
  if (!first_tenant_.compare_exchange_strong(first, own) && first != own) refused_another_ = true;
  refused_early_.fetch_add(1, std::memory_order_relaxed);
  return absl::ResourceExhaustedError(
      absl::StrCat("the waiting pool is full (", options_.max_waiting, " requests)"));
}

absl::Status OverloadControl::CheckShare(const std::string& tenant) {
  for (FairShares* shares : {&requests_, &bytes_, &kv_}) {
    shares->Ask(tenant);
    if (refused_another_) shares->Ask("another");
  }
  if (requests_.May({tenant, ""}) || requests_.used() >= options_.max_waiting) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the tenant has its share of the waiting requests (--max_waiting=", options_.max_waiting,
                   "); other tenants have requests, too"));
}

absl::Status OverloadControl::Check(const RequestRecord& record, int64_t own_kv) const {
  const int64_t bytes = record.request.prompt_bytes() + record.history_bytes();
  if (!bytes_.May({record.request.tenant, ""}, bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("the prompts of waiting requests take ", bytes_.used(),
                                                     " bytes already (--request_memory_mb)"));
  }
  // The first call is accepted whatever its size, and the first of a tenant beyond its share.
  const Peer tenant{record.request.tenant, ""};
  const int64_t wanted = KvOf(record.request);
  const bool bound = options_.max_waiting_kv > 0 && kv_tokens_ > 0 && kv_.used() > own_kv;
  if (bound && kv_.used() + wanted > kv_.whole()) {
    return absl::ResourceExhaustedError(absl::StrCat("accepted requests may need ", kv_.used(),
                                                     " KV tokens already; the workers have ", kv_tokens_));
  }
  if (bound && kv_.held(tenant) > own_kv && !kv_.May(tenant, wanted)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tenant's requests may need ", kv_.held(tenant),
                     " KV tokens already, its share; other tenants have requests, too"));
  }
  return absl::OkStatus();
}

void OverloadControl::Charge(RequestRecord& record, int64_t most_kv) {
  record.committed_kv = std::min(KvOf(record.request), most_kv);
  if (record.committed_kv > 0) kv_.Hold({record.request.tenant, ""}, record.committed_kv);
  if (record.first_token) return;
  record.waiting_bytes = record.request.prompt_bytes() + record.history_bytes();
  if (record.waiting_bytes == 0) return;
  bytes_.Hold({record.request.tenant, ""}, record.waiting_bytes);
  requests_.Hold({record.request.tenant, ""});
}

void OverloadControl::OnFirstToken(RequestRecord& record) {
  if (record.waiting_bytes == 0) return;
  bytes_.Give({record.request.tenant, ""}, std::exchange(record.waiting_bytes, 0));
  requests_.Give({record.request.tenant, ""});
}

void OverloadControl::Discharge(RequestRecord& record) {
  const int64_t kv = std::exchange(record.committed_kv, 0);
  if (kv > 0) kv_.Give({record.request.tenant, ""}, kv);
  OnFirstToken(record);
}

}  // namespace bfio::router
