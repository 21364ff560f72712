#include "router/requests/tenant_limits.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "router/requests/retry.h"

namespace bfio::router {
namespace {

// A bucket holds what comes in this time.
constexpr double kDepthSeconds = 1;

absl::Status Refusal(const std::string& tenant, absl::string_view limit, absl::Duration retry) {
  return WithRetry(
      absl::ResourceExhaustedError(absl::StrCat("tenant \"", tenant, "\" is over its limit of ", limit)),
      retry);
}

TokenBucket BucketOf(double rate, absl::Time now) {
  return TokenBucket(rate, std::max(1.0, rate * kDepthSeconds), now);
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
      const std::vector<absl::string_view> words = absl::StrSplit(part, '=');
      double value = 0;
      if (words.size() != 2 || !absl::SimpleAtod(words[1], &value) || !(value > 0 && value <= 1e12)) {
        return wrong("a limit is NAME=NUMBER, the number above 0");
      }
      if (words[0] == "rps") {
        limit.requests_per_s = value;
      } else if (words[0] == "tps") {
        limit.tokens_per_s = value;
      } else if (words[0] == "concurrent") {
        limit.concurrent = std::max<int64_t>(1, std::llround(value));
      } else {
        return wrong("limits are rps, tps and concurrent");
      }
    }
    if (!limits.emplace(entry.substr(0, colon), limit).second) return wrong("the tenant is named twice");
  }
  return limits;
}

absl::Duration TokenBucket::Wait(double amount, absl::Time now) {
  if (rate_ <= 0) return absl::ZeroDuration();
  if (now > at_) {
    level_ = std::min(depth_, level_ + rate_ * absl::ToDoubleSeconds(now - at_));
    at_ = now;
  }
  // More than the bucket can hold may be taken when it is full.
  const double missing = std::min(amount, depth_) - level_;
  if (missing <= 1e-9 * depth_) return absl::ZeroDuration();
  return absl::Seconds(missing / rate_);
}

TenantLimiter::Account* TenantLimiter::Find(const std::string& tenant, std::string& name, absl::Time now) {
  auto limit = limits_.find(tenant);
  const bool named = limit != limits_.end();
  if (!named) limit = limits_.find("*");
  if (limit == limits_.end()) return nullptr;
  name = tenant;
  auto it = accounts_.find(name);
  if (it == accounts_.end() && !named && accounts_.size() >= max_tenants_) {
    absl::erase_if(accounts_, [&](auto& entry) {
      Account& account = entry.second;
      return account.running == 0 && account.requests.Full(now) && account.tokens.Full(now);
    });
    // Still too many: this one shares the account of all that came too late.
    if (accounts_.size() >= max_tenants_) name = limit->first;
    it = accounts_.find(name);
  }
  if (it == accounts_.end()) {
    const TenantLimit& from = limit->second;
    Account account{from, BucketOf(from.requests_per_s, now), BucketOf(from.tokens_per_s, now), 0};
    it = accounts_.emplace(name, account).first;
  }
  return &it->second;
}

absl::StatusOr<TenantLimiter::Ticket> TenantLimiter::Enter(const std::string& tenant, int64_t tokens,
                                                           absl::Time now) {
  Ticket ticket;
  if (limits_.empty()) return ticket;
  MutexLock lock(&mutex_);
  Account* account = Find(tenant, ticket.account_, now);
  if (account == nullptr) return ticket;
  const TenantLimit& limit = account->limit;
  if (limit.concurrent > 0 && account->running >= limit.concurrent) {
    return Refusal(tenant, absl::StrCat(limit.concurrent, " requests at a time"), kFullRetry);
  }
  const absl::Duration for_request = account->requests.Wait(1, now);
  if (for_request > absl::ZeroDuration()) {
    return Refusal(tenant, absl::StrCat(limit.requests_per_s, " requests per second"), for_request);
  }
  const absl::Duration for_tokens = account->tokens.Wait(static_cast<double>(tokens), now);
  if (for_tokens > absl::ZeroDuration()) {
    return Refusal(tenant, absl::StrCat(limit.tokens_per_s, " tokens per second"), for_tokens);
  }
  account->requests.Take(1);
  account->tokens.Take(static_cast<double>(tokens));
  ++account->running;
  ticket.limiter_ = this;
  ticket.charged_ = tokens;
  return ticket;
}

void TenantLimiter::Leave(const Ticket& ticket) {
  MutexLock lock(&mutex_);
  const auto it = accounts_.find(ticket.account_);
  if (it == accounts_.end()) return;  // not while it has requests running
  --it->second.running;
  it->second.tokens.GiveBack(static_cast<double>(std::max<int64_t>(0, ticket.charged_ - ticket.used_)));
}

void TenantLimiter::Ticket::Release() {
  if (TenantLimiter* limiter = std::exchange(limiter_, nullptr); limiter != nullptr) limiter->Leave(*this);
}

}  // namespace bfio::router
