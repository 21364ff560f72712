#include "tests/chaos/client_load.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/testing/process.h"
#include "tools/client/stream_call.h"
#include "worker/engine/sim/sim_engine.h"

namespace bfio::chaos {
namespace {

constexpr absl::Duration kNoticeGap = absl::Milliseconds(500);
constexpr absl::Duration kLoadTick = absl::Milliseconds(2);
constexpr size_t kMaxFindings = 20, kMaxGaps = 100000;
// Maximum number of recorded latencies: all of a run of some minutes, the first ones of a longer run.
constexpr size_t kMaxLatencies = 1 << 20;

int64_t Ns(absl::Time time) {
  return absl::ToUnixNanos(time);
}

}  // namespace

struct ClientLoad::Request {
  uint64_t n = 0;
  v1::GenerateRequest message;
  uint32_t received = 0;
  bool finished = false;
  // A poisoned request has no valid tokens.
  bool poisoned = false;
  absl::Time first_sent, last_heard;
  bool heard_any = false;
  // Number of tokens after which the client cancels, or disconnects and resumes; 0: never.
  uint32_t cancel_after = 0, drop_after = 0;
  bool cancelled = false, dropped = false;
  int attempts = 0;
  // Of the current attempt; added to the ledger when it has ended.
  Ledger seen;
};

// One RPC. Only the attempt accesses the request until Judge is given the end.
class ClientLoad::Attempt final : public client::StreamCall {
 public:
  Attempt(ClientLoad& load, Request& request)
      : StreamCall(request.message,
                   absl::Now() + load.options_.deadline - (MonotonicNow() - request.first_sent),
                   client::BearerToken(TokenOf(request.message.tenant()))),
        load_(load),
        request_(request) {}

 private:
  Then OnMessage(v1::GenerateResponse& message, absl::Time arrived) override {
    Take(message, arrived);
    if (request_.cancel_after > 0 && request_.received >= request_.cancel_after && !request_.finished) {
      request_.cancelled = true;
      Cancel();
    } else if (request_.drop_after > 0 && request_.received >= request_.drop_after && !request_.finished) {
      request_.dropped = true;
      request_.drop_after = 0;
      Cancel();
    }
    return Then::kRead;
  }

  void OnEnd(const grpc::Status& status, absl::Time) override {
    std::lock_guard lock(load_.mutex_);
    load_.ended_.emplace_back(request_.n, status);
  }

  void Find(std::string what) {
    if (request_.seen.findings.size() < kMaxFindings)
      request_.seen.findings.push_back(absl::StrCat("request ", request_.n, ": ", what));
  }

  void Take(const v1::GenerateResponse& message, absl::Time now) {
    Ledger& seen = request_.seen;
    if (request_.heard_any) {
      if (now - request_.last_heard >= kNoticeGap)
        seen.gaps.push_back({request_.n, request_.last_heard, now, request_.received, request_.attempts});
    } else if (message.token_ids_size() > 0) {
      seen.first_token_s.push_back(static_cast<float>(absl::ToDoubleSeconds(now - request_.first_sent)));
    }
    request_.last_heard = now;
    request_.heard_any = true;
    if (request_.finished) {
      ++seen.bad_finishes;
      Find("a message after the finish");
    }
    if (!message.resume_ticket().empty()) request_.message.set_resume_ticket(message.resume_ticket());
    if (message.token_ids_size() > 0) TakeTokens(message, now);
    if (message.has_finish()) TakeFinish(message.finish());
  }

  void TakeTokens(const v1::GenerateResponse& message, absl::Time now) {
    Ledger& seen = request_.seen;
    load_.last_token_ns_.store(Ns(now), std::memory_order_relaxed);
    if (request_.poisoned) {
      seen.poison_tokens += message.token_ids_size();
      Find("poisoned, and it has tokens");
    }
    if (message.first_index() < request_.received) {
      ++seen.repeated;
      Find(absl::StrCat("token ", message.first_index(), " where ", request_.received, " was due"));
      return;
    }
    if (message.first_index() > request_.received) {
      ++seen.skipped;
      Find(absl::StrCat("token ", message.first_index(), " where ", request_.received, " was due"));
      request_.received = message.first_index();
    }
    for (const uint32_t token : message.token_ids()) {
      if (request_.received >= request_.message.max_new_tokens()) {
        ++seen.repeated;
        Find("more tokens than asked for");
        return;
      }
      if (token != load_.workload_.Token(request_.n, request_.received)) {
        ++seen.wrong;
        Find(absl::StrCat("token ", request_.received, " is ", token, ", not ",
                          load_.workload_.Token(request_.n, request_.received)));
      }
      ++request_.received;
      ++seen.tokens;
    }
  }

  void TakeFinish(const v1::Finish& finish) {
    request_.finished = true;
    if (finish.reason() != v1::FINISH_REASON_LENGTH ||
        request_.received != request_.message.max_new_tokens() ||
        finish.usage().completion_tokens() != request_.received) {
      ++request_.seen.bad_finishes;
      Find(absl::StrCat("finish ", finish.ShortDebugString(), " after ", request_.received, " of ",
                        request_.message.max_new_tokens(), " tokens"));
    }
  }

  ClientLoad& load_;
  Request& request_;
};

std::string TenantName(int tenant) {
  return absl::StrCat("tenant-", tenant);
}
std::string TokenOf(const std::string& tenant) {
  return absl::StrCat("token-of-", tenant, "-0123456789");
}

std::string WriteTokens() {
  const std::string path = testing::TestDirectory() + "/client_tokens";
  std::ofstream file(path);
  const auto add = [&](const std::string& tenant) { file << tenant << " token:" << TokenOf(tenant) << "\n"; };
  for (int i = 0; i < kTenants; ++i) add(TenantName(i));
  add(kGreedyTenant);
  file << kGateway << " token:" << TokenOf(kGateway) << " role=gateway\n";
  return path;
}

ClientLoad::ClientLoad(LoadOptions options, const Workload& workload)
    : options_(std::move(options)), workload_(workload) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Also the timeout of connecting, which may have to wait during a flood.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  stub_ = v1::Inference::NewStub(
      grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), args));
}

ClientLoad::~ClientLoad() = default;

void ClientLoad::Run(absl::Duration duration) {
  const absl::Time end = MonotonicNow() + duration;
  Rng arrivals = Rng(options_.seed).Fork(1);
  absl::Time next = MonotonicNow();
  uint64_t n = 0;
  last_token_ns_ = Ns(next);
  std::vector<std::pair<uint64_t, grpc::Status>> ended;
  for (;;) {
    const absl::Time now = MonotonicNow();
    const bool sending = now < end;
    for (; sending && next <= now; next += absl::Seconds(arrivals.Exponential() / options_.rate))
      Send(n++, false, now);
    for (int due = sending ? poisoned_due_.exchange(0) : 0; due > 0; --due) Send(n++, true, now);
    while (!due_.empty() && due_.begin()->first <= now) {
      Request& request = *open_.at(due_.begin()->second);
      due_.erase(due_.begin());
      Begin(request);
    }
    {
      std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (const auto& [id, status] : ended) Judge(*open_.at(id), status, MonotonicNow());
    ended.clear();
    if (!open_.empty()) {
      ledger_.longest_silence =
          std::max(ledger_.longest_silence, absl::Nanoseconds(Ns(now) - last_token_ns_.load()));
    }
    if (!sending && open_.empty()) return;
    absl::SleepFor(kLoadTick);
  }
}

void ClientLoad::Send(uint64_t n, bool poisoned, absl::Time now) {
  auto request = std::make_unique<Request>();
  request->n = n;
  request->poisoned = poisoned;
  request->message = workload_.Request(n);
  if (poisoned) {
    request->message.mutable_token_ids()->add_ids(1);
    request->message.mutable_token_ids()->add_ids(worker::kSimPoisonToken);
  }
  request->message.set_request_id(absl::StrCat("chaos-", options_.seed, "-", n));
  request->message.set_tenant(TenantName(static_cast<int>(n % kTenants)));
  request->message.set_resume_token(absl::StrCat("secret-", n));
  Rng rng = Rng(options_.seed).Fork(2).Fork(n);
  const double draw = rng.Uniform();
  const uint32_t when = 1 + static_cast<uint32_t>(rng.Below(request->message.max_new_tokens()));
  const bool cancels = draw < options_.cancelled;
  if (cancels) request->cancel_after = when;
  if (!cancels && draw < options_.cancelled + options_.dropped) request->drop_after = when;
  // A resumable request survives its stream, so a client that cancels by disconnecting must not set this.
  request->message.set_resumable(!cancels && draw < 1 - options_.plain);
  request->first_sent = now;
  ++ledger_.sent;
  Request& begun = *request;
  open_.emplace(n, std::move(request));
  Begin(begun);
}

void ClientLoad::Begin(Request& request) {
  if (request.attempts++ > 0) {
    request.message.set_resume_from_index(request.received);
    while (request.message.received_token_ids_size() < static_cast<int>(request.received)) {
      const auto next = static_cast<uint32_t>(request.message.received_token_ids_size());
      request.message.add_received_token_ids(workload_.Token(request.n, next));
    }
  }
  std::make_shared<Attempt>(*this, request)->Start(*stub_);
}

void ClientLoad::Judge(Request& request, const grpc::Status& status, absl::Time now) {
  const bool ok = status.ok();
  const std::string ending = absl::StrCat(status.error_code(), " ", status.error_message().substr(0, 100));
  if (ok) {
    if (!request.finished) return Close(request, Fate::kLost, "OK without a finish");
    if (request.attempts > 1) ++ledger_.resumed;
    return Close(request, Fate::kCompleted, "");
  }
  if (request.finished) {
    // The stream broke between its last message and its status: the client has received everything.
    return Close(request, Fate::kCompleted, "");
  }
  if (request.cancelled) return Close(request, Fate::kCancelled, "");
  if (request.poisoned && status.error_code() == grpc::StatusCode::INTERNAL &&
      absl::StrContains(status.error_message(), "logits are not finite")) {
    return Close(request, Fate::kPoisoned, "");
  }
  if (status.error_code() == grpc::StatusCode::INTERNAL &&
      absl::StrContains(status.error_message(),
                        "workers failed one after another while they ran this request")) {
    ledger_.suspects.push_back({request.n, request.first_sent, now});
    return Close(request, Fate::kSuspected, ending);
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return Close(request, Fate::kHung, ending);
  const bool come_back = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  const bool refused =
      come_back && request.received == 0 && request.attempts == 1 && !status.error_details().empty();
  if (refused) return Close(request, Fate::kRefused, ending);
  const bool broken = come_back || status.error_code() == grpc::StatusCode::CANCELLED ||
                      status.error_code() == grpc::StatusCode::UNKNOWN ||
                      // The status that gRPC reports when the peer resets a stream.
                      (status.error_code() == grpc::StatusCode::INTERNAL &&
                       status.error_message().find("RST_STREAM") != std::string::npos);
  if (request.message.resumable() && (broken || request.dropped)) {
    Rng rng = Rng(options_.seed).Fork(3).Fork(request.n * 1000 + static_cast<uint64_t>(request.attempts));
    request.dropped = false;
    due_.emplace(now + absl::Milliseconds(20 + rng.Below(180)), request.n);
    return;
  }
  if (broken) {
    // Without a token the request was never accepted, because no process listened; otherwise a router that
    // died ended it.
    return Close(request, request.received == 0 ? Fate::kRefused : Fate::kEnded, ending);
  }
  Close(request, Fate::kLost, ending);
}

void ClientLoad::Close(Request& request, Fate fate, const std::string& ending) {
  ++ledger_.fates[fate];
  if (!ending.empty() && (ledger_.endings.size() < 50 || ledger_.endings.contains(ending)))
    ++ledger_.endings[ending];
  const auto find = [&](std::string what) {
    if (ledger_.findings.size() < kMaxFindings) ledger_.findings.push_back(std::move(what));
  };
  Ledger& seen = request.seen;
  ledger_.tokens += seen.tokens;
  ledger_.repeated += seen.repeated;
  ledger_.skipped += seen.skipped;
  ledger_.wrong += seen.wrong;
  ledger_.bad_finishes += seen.bad_finishes;
  ledger_.poison_tokens += seen.poison_tokens;
  for (std::string& finding : seen.findings) find(std::move(finding));
  if (fate == Fate::kLost || fate == Fate::kHung) {
    find(absl::StrCat("request ", request.n, " after ", request.received, " of ",
                      request.message.max_new_tokens(), " tokens and ", request.attempts,
                      " attempts: ", ending));
  }
  if (ledger_.gaps.size() < kMaxGaps)
    ledger_.gaps.insert(ledger_.gaps.end(), seen.gaps.begin(), seen.gaps.end());
  if (ledger_.first_token_s.size() < kMaxLatencies) {
    ledger_.first_token_s.insert(ledger_.first_token_s.end(), seen.first_token_s.begin(),
                                 seen.first_token_s.end());
  }
  open_.erase(request.n);
}

}  // namespace bfio::chaos
