#include "router/requests/tenant_limits.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/out_of_range.h"
#include "router/requests/check_request.h"
#include "router/requests/limits.h"
#include "router/requests/retry.h"

namespace bfio::router {
namespace {

// Depth of a bucket, in seconds of its rate.
constexpr double kDepthSeconds = 1;

absl::Status Refusal(const std::string& tenant, absl::string_view limit, absl::Duration retry) {
  return WithRetry(
      absl::ResourceExhaustedError(absl::StrCat("tenant \"", tenant, "\" is over its limit of ", limit)),
      retry);
}

TokenBucket BucketOf(double rate, absl::Time now) {
  return TokenBucket(rate, std::max(1.0, rate * kDepthSeconds), now);
}

// Sets one field of `limit` from NAME=NUMBER.
absl::Status ParseLimit(absl::string_view part, TenantLimit& limit) {
  const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(part, absl::MaxSplits('=', 1));
  if (words.first == "priority") {
    int32_t priority = 0;
    const int32_t most = RequestLimits().max_abs_priority;
    if (!absl::SimpleAtoi(words.second, &priority) || priority < -most || priority > most)
      return absl::InvalidArgumentError(absl::StrCat("priority must be within -", most, "..", most));
    limit.priority = priority;
    return absl::OkStatus();
  }
  double value = 0;
  if (!absl::SimpleAtod(words.second, &value) || !(value > 0 && value <= 1e12))
    return absl::InvalidArgumentError("a limit must be NAME=NUMBER with a number above 0");
  if (words.first == "rps") {
    limit.requests_per_s = value;
  } else if (words.first == "tps") {
    limit.tokens_per_s = value;
  } else if (words.first == "concurrent") {
    limit.concurrent = std::max<int64_t>(1, std::llround(value));
  } else if (words.first == "ttft") {
    limit.ttft_objective = absl::Seconds(value);
    return CheckObjective("ttft", limit.ttft_objective);
  } else {
    return absl::InvalidArgumentError("unknown limit; must be rps, tps, concurrent, priority or ttft");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TenantLimits> ParseTenantLimits(absl::string_view text) {
  TenantLimits limits;
  for (const absl::string_view entry : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("\"", entry, "\": ", what));
    };
    const size_t colon = entry.rfind(':');
    if (colon == absl::string_view::npos) return wrong("must be TENANT:LIMIT=NUMBER,...");
    TenantLimit limit;
    for (const absl::string_view part : absl::StrSplit(entry.substr(colon + 1), ',')) {
      if (absl::Status status = ParseLimit(part, limit); !status.ok()) return wrong(status.message());
    }
    if (!limits.emplace(entry.substr(0, colon), limit).second) return wrong("the tenant is listed twice");
  }
  return limits;
}

const TenantLimits::value_type* TenantLimiter::LimitOf(const std::string& tenant) const {
  auto limit = limits_.find(tenant);
  if (limit == limits_.end()) limit = limits_.find("*");
  return limit == limits_.end() ? nullptr : &*limit;
}

absl::Status TenantLimiter::CheckPriority(const std::string& tenant, int32_t priority) const {
  const TenantLimits::value_type* const limit = LimitOf(tenant);
  if (limit == nullptr || priority <= limit->second.priority.value_or(priority)) return absl::OkStatus();
  return OutOfRange("priority", priority,
                    absl::StrCat("at most ", *limit->second.priority, " for tenant \"", tenant, "\""));
}

int32_t TenantLimiter::FitPriority(const std::string& tenant, int32_t priority) const {
  const TenantLimits::value_type* const limit = LimitOf(tenant);
  return limit == nullptr ? priority : std::min(priority, limit->second.priority.value_or(priority));
}

std::optional<absl::Duration> TenantLimiter::TtftObjective(const std::string& tenant) const {
  const TenantLimits::value_type* const limit = LimitOf(tenant);
  return limit == nullptr ? std::nullopt : limit->second.ttft_objective;
}

TenantLimiter::Account* TenantLimiter::Find(const std::string& tenant, std::string& name, absl::Time now) {
  const TenantLimits::value_type* const limit = LimitOf(tenant);
  if (limit == nullptr) return nullptr;
  const bool named = limit->first == tenant;
  name = tenant;
  auto it = accounts_.find(name);
  if (it == accounts_.end() && !named && accounts_.size() >= max_tenants_) {
    absl::erase_if(accounts_, [&](auto& entry) {
      Account& account = entry.second;
      return account.running == 0 && account.requests.Full(now) && account.tokens.Full(now);
    });
    // The table is still full, so this tenant shares an account with other late ones.
    if (accounts_.size() >= max_tenants_)
      name = absl::StrCat(limit->first, " ", std::hash<std::string>()(tenant) % max_tenants_);
    it = accounts_.find(name);
  }
  if (it == accounts_.end()) {
    const TenantLimit& from = limit->second;
    Account account{from, BucketOf(from.requests_per_s, now), BucketOf(from.tokens_per_s, now), 0};
    it = accounts_.emplace(name, account).first;
  }
  return &it->second;
}

int64_t TenantLimiter::Concurrent(const std::string& tenant) const {
  const TenantLimits::value_type* const limit = LimitOf(tenant);
  return limit == nullptr ? 0 : limit->second.concurrent;
}

TenantLimiter::Ticket TenantLimiter::Charged(const std::string& tenant, absl::Time now) {
  Ticket ticket;
  MutexLock lock(&mutex_);
  std::string name;
  Account* const account = Find(tenant, name, now);
  if (account == nullptr) return ticket;
  ++account->running;
  ticket.limiter_ = this;
  ticket.account_ = name;
  return ticket;
}

absl::StatusOr<TenantLimiter::Ticket> TenantLimiter::Enter(const std::string& tenant, int64_t tokens,
                                                           absl::Time now) {
  absl::StatusOr<std::vector<Ticket>> tickets = EnterAll(tenant, tokens, 1, now);
  if (!tickets.ok()) return tickets.status();
  return std::move(tickets->front());
}

absl::StatusOr<std::vector<TenantLimiter::Ticket>> TenantLimiter::EnterAll(const std::string& tenant,
                                                                           int64_t tokens, int64_t outputs,
                                                                           absl::Time now) {
  std::vector<Ticket> tickets(static_cast<size_t>(outputs));
  if (limits_.empty()) return tickets;
  MutexLock lock(&mutex_);
  std::string name;
  Account* account = Find(tenant, name, now);
  if (account == nullptr) return tickets;
  const TenantLimit& limit = account->limit;
  if (limit.concurrent > 0 && outputs > limit.concurrent) {
    return OutOfRange("n", outputs,
                      absl::StrCat("at most ", limit.concurrent, ", the requests that tenant \"", tenant,
                                   "\" may have at a time"));
  }
  if (limit.concurrent > 0 && account->running + outputs > limit.concurrent) {
    return Refusal(tenant, absl::StrCat(limit.concurrent, " requests at a time"), kFullRetry);
  }
  const auto requests = static_cast<double>(outputs);
  const double all_tokens = requests * static_cast<double>(tokens);
  const absl::Duration for_request = account->requests.Wait(requests, now);
  if (for_request > absl::ZeroDuration()) {
    return Refusal(tenant, absl::StrCat(limit.requests_per_s, " requests per second"), for_request);
  }
  const absl::Duration for_tokens = account->tokens.Wait(all_tokens, now);
  if (for_tokens > absl::ZeroDuration()) {
    return Refusal(tenant, absl::StrCat(limit.tokens_per_s, " tokens per second"), for_tokens);
  }
  account->requests.Take(requests);
  account->tokens.Take(all_tokens);
  account->running += outputs;
  for (Ticket& ticket : tickets) {
    ticket.limiter_ = this;
    ticket.account_ = name;
    ticket.charged_ = tokens;
  }
  return tickets;
}

void TenantLimiter::Leave(const Ticket& ticket) {
  MutexLock lock(&mutex_);
  const auto it = accounts_.find(ticket.account_);
  if (it == accounts_.end()) return;  // cannot happen: an account with running requests is never removed
  --it->second.running;
  it->second.tokens.GiveBack(static_cast<double>(std::max<int64_t>(0, ticket.charged_ - ticket.used_)));
}

void TenantLimiter::Ticket::Release() {
  if (TenantLimiter* limiter = std::exchange(limiter_, nullptr); limiter != nullptr) limiter->Leave(*this);
}

}  // namespace bfio::router
