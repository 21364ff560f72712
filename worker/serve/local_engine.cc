#include "worker/serve/local_engine.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "router/requests/check_request.h"

namespace bfio::worker {
namespace {

// The group never changes its members.
constexpr uint64_t kEpoch = 1;
constexpr uint64_t kStream = 1;
// Beyond it the delivery thread has too little CPU time, and steps wait for it.
constexpr size_t kMaxDeliveries = size_t{1} << 20;
constexpr absl::Duration kLongestHold = absl::Seconds(1);
// A prompt takes whole pages.
constexpr int64_t kPageSlack = 64;

uint64_t RandomSalt() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

class LocalEngine::Link final : public StepLink {
 public:
  Link(LocalEngine* engine, int rank) : engine_(engine), rank_(rank) {}
  void Send(uint64_t, OutMessage message) override { engine_->Receive(rank_, std::move(message)); }

 private:
  LocalEngine* const engine_;
  const int rank_;
};

LocalEngine::LocalEngine(LocalEngineOptions options)
    : options_(std::move(options)), salt_(RandomSalt()), balancer_(options_.ranks, MonotonicNow()) {
  MutexLock lock(&mutex_);
  ranks_.resize(static_cast<size_t>(options_.ranks));
  for (int i = 0; i < options_.ranks; ++i)
    ranks_[static_cast<size_t>(i)].link = std::make_unique<Link>(this, i);
  thread_ = std::thread([this] { Run(); });
}

LocalEngine::~LocalEngine() {
  Stop(absl::UnavailableError("the engine has stopped"));
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

StepLink& LocalEngine::link(int rank) {
  MutexLock lock(&mutex_);
  return *ranks_[static_cast<size_t>(rank)].link;
}

void LocalEngine::Start(std::vector<Inbox*> inboxes) {
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].inbox = inboxes[i];
    ranks_[i].inbox->OnStreamUp(kStream);
  }
}

void LocalEngine::Drain() {
  MutexLock lock(&mutex_);
  if (refusal_.ok()) refusal_ = absl::UnavailableError("the engine is shutting down");
}

bool LocalEngine::EmptyWithin(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto empty = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return requests_.empty(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&empty), timeout);
}

void LocalEngine::Stop(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (refusal_.ok()) refusal_ = status;
  while (!requests_.empty()) End(requests_.begin()->first, status, std::nullopt);
}

absl::Status LocalEngine::failure() {
  MutexLock lock(&mutex_);
  return failure_;
}

void LocalEngine::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  refusal_ = absl::UnavailableError(absl::StrCat("the engine has failed: ", status.message()));
  while (!requests_.empty()) End(requests_.begin()->first, refusal_, std::nullopt);
}

// --- clients ---

absl::Status LocalEngine::Admission(const router::ClientRequest& request, int64_t outputs) const {
  if (!refusal_.ok()) return refusal_;
  if (ready_ < options_.ranks) return absl::UnavailableError("the engine is starting");
  if (request.rank && *request.rank >= ranks_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_parallel_rank is ", *request.rank, "; it must be below ", ranks_.size()));
  }
  if (request.sampling.logprobs && !logprobs_)
    return absl::InvalidArgumentError("logprobs is not supported: the engine computes no log-probabilities");
  if (names_.contains(Name(request.tenant, request.request_id))) {
    return absl::AlreadyExistsError(
        absl::StrCat("a live request has the request_id \"", request.request_id, "\""));
  }
  // No rank can ever hold it. At the head of a queue it would block the others until the rank is empty.
  const int64_t tokens = int64_t{request.prompt_tokens} + request.max_new_tokens;
  if (tokens > LongestSequence()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt + max_new_tokens is ", tokens,
                                                   " tokens; the engine holds at most ", LongestSequence(),
                                                   " per request"));
  }
  if (outputs > options_.max_waiting)
    return router::OutOfRange("n", outputs, absl::StrCat("at most ", options_.max_waiting));
  if (waiting_ + outputs > options_.max_waiting ||
      waiting_tokens_ + outputs * int64_t{request.prompt_tokens} > options_.max_waiting_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat("the engine has ", waiting_, " requests waiting"));
  }
  return absl::OkStatus();
}

absl::Status LocalEngine::Submit(router::ClientRequest request, std::vector<Output> outputs) {
  MutexLock lock(&mutex_);
  if (absl::Status status = Admission(request, static_cast<int64_t>(outputs.size())); !status.ok())
    return status;
  const absl::Time now = MonotonicNow();
  for (uint32_t i = 0; i < outputs.size(); ++i) Add(outputs[i], OutputOf(request, i), now);
  WakeIfIdle();
  return absl::OkStatus();
}

void LocalEngine::Add(const Output& output, router::ClientRequest request, absl::Time now) {
  auto record = std::make_unique<Request>();
  record->number = ++submitted_;
  record->arrived = now;
  record->seed = request.sampling.seed ? *request.sampling.seed : Mix64(salt_ ^ Mix64(output.id));
  if (request.rank) {
    record->rank = static_cast<int>(*request.rank);
    balancer_.Pin(record->rank);
  } else {
    record->rank = balancer_.Choose(now);
  }
  names_[Name(request.tenant, request.request_id)].push_back(output.id);
  record->client = std::move(request);
  record->sink = output.sink;
  CountWaiting(*record, 1);
  Rank& rank = ranks_[static_cast<size_t>(record->rank)];
  record->waits_since = rank.step;
  rank.waiting.push_back(output.id);
  requests_.emplace(output.id, std::move(record));
}

void LocalEngine::Cancel(uint64_t sink_id, bool timed_out) {
  MutexLock lock(&mutex_);
  End(sink_id,
      timed_out ? absl::DeadlineExceededError("the request's time is up")
                : absl::CancelledError("the client is gone"),
      std::nullopt);
}

absl::Status LocalEngine::Abort(AbortRequest request,
                                absl::AnyInvocable<void(absl::StatusOr<bool>) &&> done) {
  bool found = false;
  {
    MutexLock lock(&mutex_);
    const auto it = names_.find(Name(request.tenant, request.request_id));
    found = it != names_.end();
    // A copy, because End removes each request from the list.
    for (const Handle handle : found ? std::vector<Handle>(it->second) : std::vector<Handle>()) {
      End(handle, absl::OkStatus(),
          FinishOf(*requests_.at(handle), router::FinishReason::kAbort, MonotonicNow()));
    }
  }
  std::move(done)(found);
  return absl::OkStatus();
}

router::RankLoad LocalEngine::LoadOf(int rank, absl::Time now) const {
  const Rank& from = ranks_[static_cast<size_t>(rank)];
  router::RankLoad load;
  load.rank = static_cast<uint32_t>(rank);
  load.running_requests = from.running;
  load.waiting_requests = static_cast<int64_t>(from.waiting.size());
  load.waiting_tokens = from.waiting_tokens;
  load.used_tokens = from.limits.kv_tokens - from.free_kv_tokens;
  load.max_tokens = from.limits.kv_tokens;
  const absl::Duration old = now - from.second;
  load.tokens_per_second = static_cast<double>(old < absl::Seconds(1)   ? from.tokens_before
                                               : old < absl::Seconds(2) ? from.tokens_now
                                                                        : 0);
  load.slots = from.limits.slots;
  return load;
}

absl::Status LocalEngine::GetLoads(std::optional<uint32_t> rank,
                                   absl::AnyInvocable<void(absl::StatusOr<router::Loads>) &&> done) {
  router::Loads loads;
  loads.timestamp = absl::Now();
  loads.version = options_.version;
  loads.ranks = static_cast<uint32_t>(options_.ranks);
  if (rank && *rank >= loads.ranks) {
    std::move(done)(absl::NotFoundError(absl::StrCat("dp_rank is ", *rank, "; must be below ", loads.ranks)));
    return absl::OkStatus();
  }
  {
    MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    for (uint32_t i = 0; i < loads.ranks; ++i) {
      if (!rank || *rank == i) loads.loads.push_back(LoadOf(static_cast<int>(i), now));
    }
  }
  std::move(done)(std::move(loads));
  return absl::OkStatus();
}

router::Serving LocalEngine::GetServing() const {
  MutexLock lock(&mutex_);
  router::Serving serving;
  if (ready_ < options_.ranks) return serving;
  serving.ready = refusal_.ok();
  serving.max_sequence_tokens = LongestSequence();
  return serving;
}

int64_t LocalEngine::LongestSequence() const {
  int64_t longest = std::numeric_limits<int64_t>::max();
  for (const Rank& rank : ranks_)
    longest = std::min({longest, rank.limits.max_sequence_tokens, rank.limits.kv_tokens});
  return longest;
}

// --- ranks ---

void LocalEngine::Receive(int rank, OutMessage message) {
  MutexLock lock(&mutex_);
  Rank& from = ranks_[static_cast<size_t>(rank)];
  if (const auto* report = std::get_if<StepReport>(&message)) {
    const auto taken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return deliveries_.size() < kMaxDeliveries;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&taken), kLongestHold);
    OnReport(rank, *report);
  } else if (const auto* hello = std::get_if<Hello>(&message)) {
    OnHello(from, *hello);
  } else if (const auto* ready = std::get_if<EpochReady>(&message)) {
    OnReady(from, *ready);
  }
}

void LocalEngine::OnHello(Rank& rank, const Hello& hello) {
  rank.limits = hello.limits;
  rank.free_slots = hello.limits.slots;
  rank.free_kv_tokens = hello.limits.kv_tokens;
  rank.offer = hello.communicator_offer;
  logprobs_ = logprobs_ && hello.logprobs;
  rank.greeted = true;
  if (!std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return one.greeted; })) return;
  for (int i = 0; i < options_.ranks; ++i) {
    Epoch epoch;
    epoch.group = {kEpoch, i, options_.ranks, ranks_[0].offer};
    epoch.form_timeout = options_.form_timeout;
    epoch.step_timeout = options_.step_timeout;
    ranks_[static_cast<size_t>(i)].inbox->OnEpoch(std::move(epoch));
  }
}

void LocalEngine::OnReady(Rank& rank, const EpochReady& ready) {
  if (!ready.error.empty())
    return Fail(absl::UnavailableError(absl::StrCat("the ranks failed to form a group: ", ready.error)));
  if (std::exchange(rank.ready, true) || ++ready_ < options_.ranks) return;
  idle_since_ = 0;
  if (options_.on_serving) options_.on_serving();
}

void LocalEngine::OnReport(int rank, const StepReport& report) {
  Rank& from = ranks_[static_cast<size_t>(rank)];
  const absl::Time now = MonotonicNow();
  from.step = report.step;
  from.free_slots = report.free_slots;
  from.free_kv_tokens = report.free_kv_tokens;
  OnTokens(from, report.output, now);
  for (const Rejection& rejection : report.rejected) OnRejected(from, rejection);
  for (const Handle handle : report.output.preempted) OnPreempted(from, handle);
  ReportToBalancer(rank, now);
  if (!report.barrier_error.empty()) return Fail(absl::UnavailableError(report.barrier_error));
  if (report.group_idle) {
    if (from.planned <= report.step) idle_since_ = report.step;
    return WakeIfIdle();
  }
  if (from.planned <= report.step && (!from.waiting.empty() || !from.cancellations.empty())) SendPlan(from);
}

void LocalEngine::OnTokens(Rank& rank, const StepOutput& output, absl::Time now) {
  auto alternatives = output.alternatives.begin();
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const StepOutput::Token& token = output.tokens[i];
    std::unique_ptr<router::Logprobs> logprobs;
    if (alternatives != output.alternatives.end() && alternatives->token == i) {
      logprobs = std::make_unique<router::Logprobs>();
      logprobs->tokens.push_back(output.log_probabilities[i]);
      for (const TopToken& top : alternatives++->top) logprobs->top.push_back({top.id, top.logprob});
    }
    const auto it = requests_.find(token.handle);
    // The client has left since.
    if (it == requests_.end()) continue;
    Request& request = *it->second;
    if (!request.first_token) request.first_token = now;
    request.refusals = 0;
    Deliver({request.sink, static_cast<uint32_t>(request.tokens.size()), token.id, std::move(logprobs)});
    request.tokens.push_back(token.id);
  }
  const absl::Duration old = now - rank.second;
  if (old >= absl::Seconds(1)) {
    rank.tokens_before = old < absl::Seconds(2) ? rank.tokens_now : 0;
    rank.tokens_now = 0;
    rank.second = now;
  }
  rank.tokens_now += static_cast<int64_t>(output.tokens.size());
  for (const StepOutput::Finish& finish : output.finished) {
    const auto it = FindOn(rank, finish.handle);
    if (it == requests_.end()) continue;
    const auto reason =
        finish.cause == FinishCause::kLength ? router::FinishReason::kLength : router::FinishReason::kStop;
    SetRunning(*it->second, false);  // there is nothing to cancel
    End(finish.handle, absl::OkStatus(), FinishOf(*it->second, reason, now));
  }
}

LocalEngine::Requests::iterator LocalEngine::FindOn(Rank& rank, Handle handle) {
  const auto it = requests_.find(handle);
  if (it == requests_.end()) std::erase(rank.cancellations, handle);
  return it;
}

void LocalEngine::OnRejected(Rank& rank, const Rejection& rejection) {
  const auto it = FindOn(rank, rejection.handle);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  // A request that does not fit into an empty rank never fits.
  if (rejection.code == absl::StatusCode::kResourceExhausted && !request.alone) {
    ++request.refusals;
    return PutBack(rejection.handle);
  }
  SetRunning(request, false);
  End(rejection.handle, absl::Status(rejection.code, rejection.message), std::nullopt);
}

void LocalEngine::OnPreempted(Rank& rank, Handle handle) {
  const auto it = FindOn(rank, handle);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  // The steps in which it ran do not count as waiting.
  request.waits_since = rank.step - request.waited_steps;
  PutBack(handle);
}

void LocalEngine::CountWaiting(const Request& request, int change) {
  const int64_t tokens = change * static_cast<int64_t>(request.client.prompt_tokens);
  waiting_ += change;
  waiting_tokens_ += tokens;
  ranks_[static_cast<size_t>(request.rank)].waiting_tokens += tokens;
}

void LocalEngine::SetRunning(Request& request, bool running) {
  if (std::exchange(request.running, running) == running) return;
  ranks_[static_cast<size_t>(request.rank)].running += running ? 1 : -1;
}

void LocalEngine::PutBack(Handle handle) {
  const auto it = requests_.find(handle);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  SetRunning(request, false);
  CountWaiting(request, 1);
  std::deque<Handle>& waiting = ranks_[static_cast<size_t>(request.rank)].waiting;
  const auto younger = [&](Handle other) { return requests_.at(other)->number > request.number; };
  waiting.insert(std::find_if(waiting.begin(), waiting.end(), younger), handle);
}

void LocalEngine::ReportToBalancer(int rank, absl::Time now) {
  const Rank& from = ranks_[static_cast<size_t>(rank)];
  const double used = static_cast<double>(from.limits.kv_tokens - from.free_kv_tokens);
  balancer_.Report(rank, from.step,
                   {static_cast<int64_t>(from.waiting.size()), from.running,
                    used / static_cast<double>(from.limits.kv_tokens)},
                   now);
}

void LocalEngine::WakeIfIdle() {
  const auto has_work = [](const Rank& rank) { return !rank.waiting.empty(); };
  if (!idle_since_ || std::none_of(ranks_.begin(), ranks_.end(), has_work)) return;
  const int64_t step = *std::exchange(idle_since_, std::nullopt);
  for (Rank& rank : ranks_) {
    rank.step = step;
    SendPlan(rank);
  }
}

void LocalEngine::SendPlan(Rank& rank) {
  Plan plan;
  plan.epoch = kEpoch;
  plan.apply_step = rank.planned = rank.step + 1;
  plan.cancellations = std::exchange(rank.cancellations, {});
  Place(rank, plan);
  rank.inbox->OnPlan(std::move(plan));
}

void LocalEngine::Place(Rank& rank, Plan& plan) {
  int64_t slots =
      std::min<int64_t>(rank.free_slots + static_cast<int64_t>(plan.cancellations.size()), rank.limits.slots);
  int64_t kv = rank.free_kv_tokens;
  const bool was_empty = rank.running == 0;
  bool empty = was_empty;
  while (slots > 0 && !rank.waiting.empty()) {
    const Handle handle = rank.waiting.front();
    Request& request = *requests_.at(handle);
    const int64_t more = request.reserves() ? int64_t{request.client.max_new_tokens}
                                            : static_cast<int64_t>(request.tokens.size());
    const int64_t tokens = static_cast<int64_t>(request.client.prompt_tokens) + more;
    // Later requests do not overtake the head of the queue.
    if (!empty && tokens + kPageSlack > kv) return;
    rank.waiting.pop_front();
    CountWaiting(request, -1);
    SetRunning(request, true);
    request.alone = false;
    request.waited_steps = rank.step - request.waits_since;
    request.began = MonotonicNow();
    plan.assignments.push_back(SequenceOf(handle, request));
    --slots;
    kv -= tokens + kPageSlack;
    empty = false;
  }
  // If there are several, the rank may begin any of them first, and the others are then not alone.
  if (was_empty && plan.assignments.size() == 1) requests_.at(plan.assignments[0].handle)->alone = true;
}

SequenceRequest LocalEngine::SequenceOf(Handle handle, const Request& request) const {
  const router::ClientRequest& client = request.client;
  SequenceRequest sequence;
  sequence.handle = handle;
  sequence.prompt = client.prompt;
  sequence.prompt.insert(sequence.prompt.end(), request.tokens.begin(), request.tokens.end());
  sequence.prompt_length = static_cast<int64_t>(sequence.prompt.size());
  sequence.first_index = static_cast<int64_t>(request.tokens.size());
  sequence.max_new_tokens = client.max_new_tokens - sequence.first_index;
  sequence.stop_token_ids = client.stop_token_ids;
  sequence.ignore_eos = client.ignore_eos;
  sequence.sampling.temperature = client.sampling.temperature.value_or(0);
  sequence.sampling.top_p = client.sampling.top_p.value_or(1);
  if (client.sampling.top_k)
    sequence.sampling.top_k = static_cast<int32_t>(std::min<uint32_t>(*client.sampling.top_k, INT32_MAX));
  sequence.sampling.seed = request.seed;
  if (client.sampling.logprobs) sequence.sampling.logprobs = static_cast<int32_t>(*client.sampling.logprobs);
  sequence.kv_on_demand = !request.reserves();
  sequence.waited_steps = request.waited_steps;
  return sequence;
}

// --- ends ---

router::Finish LocalEngine::FinishOf(const Request& request, router::FinishReason reason,
                                     absl::Time now) const {
  router::Finish finish;
  finish.reason = reason;
  finish.prompt_tokens = request.client.prompt_tokens;
  finish.completion_tokens = static_cast<uint32_t>(request.tokens.size());
  finish.queue = std::max(request.began, request.arrived) - request.arrived;
  if (request.first_token) finish.time_to_first_token = *request.first_token - request.arrived;
  finish.end_to_end = now - request.arrived;
  finish.rank = static_cast<uint32_t>(request.rank);
  return finish;
}

std::unique_ptr<LocalEngine::Request> LocalEngine::Remove(Handle handle) {
  const auto it = requests_.find(handle);
  if (it == requests_.end()) return nullptr;
  std::unique_ptr<Request> request = std::move(it->second);
  requests_.erase(it);
  const auto name = names_.find(Name(request->client.tenant, request->client.request_id));
  std::erase(name->second, handle);
  if (name->second.empty()) names_.erase(name);
  Rank& rank = ranks_[static_cast<size_t>(request->rank)];
  if (request->running) {
    SetRunning(*request, false);
    rank.cancellations.push_back(handle);
  } else if (std::erase(rank.waiting, handle) > 0) {
    CountWaiting(*request, -1);
  }
  balancer_.End(request->rank);
  return request;
}

void LocalEngine::End(Handle handle, const absl::Status& status, std::optional<router::Finish> finish) {
  const std::unique_ptr<Request> request = Remove(handle);
  if (request == nullptr) return;
  Delivery end;
  end.sink = request->sink;
  end.ends = true;
  end.status = status;
  end.finish = std::move(finish);
  Deliver(std::move(end));
}

void LocalEngine::Deliver(Delivery delivery) {
  deliveries_.push_back(std::move(delivery));
}

// --- the delivery thread ---

void LocalEngine::HandOver(const Delivery& delivery,
                           std::vector<std::shared_ptr<router::TokenSink>>& flushes) {
  using router::TokenSink;
  const absl::Time now = MonotonicNow();
  const auto end = [&](const absl::Status& status, std::optional<router::Finish> finish) {
    if (delivery.sink->End(status, std::move(finish))) flushes.push_back(delivery.sink);
    lingering_.emplace_back(now + options_.stream.timeout, delivery.sink);
  };
  if (delivery.ends) return end(delivery.status, delivery.finish);
  const router::LogprobsView logprobs =
      delivery.logprobs == nullptr ? router::LogprobsView() : delivery.logprobs->view();
  switch (delivery.sink->Deliver(delivery.index, absl::MakeConstSpan(&*delivery.token, 1), logprobs, now)) {
    case TokenSink::Delivery::kTaken:
      return;
    case TokenSink::Delivery::kFlush:
      flushes.push_back(delivery.sink);
      return;
    case TokenSink::Delivery::kTooSlow:
      end(absl::ResourceExhaustedError("the client reads too slowly"), std::nullopt);
      break;
    case TokenSink::Delivery::kEnough: {
      router::Finish finish;
      finish.reason = router::FinishReason::kStop;
      end(absl::OkStatus(), finish);
      break;
    }
  }
  MutexLock lock(&mutex_);
  Remove(delivery.sink->id());
}

void LocalEngine::BreakOffLingering(absl::Time now) {
  while (!lingering_.empty() && lingering_.front().first <= now) {
    if (const auto sink = lingering_.front().second.lock(); sink != nullptr) sink->BreakOff();
    lingering_.pop_front();
  }
}

void LocalEngine::Run() {
  std::vector<Delivery> batch;
  std::vector<std::shared_ptr<router::TokenSink>> flushes;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const auto something = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !deliveries_.empty();
      };
      mutex_.AwaitWithTimeout(absl::Condition(&something), absl::Seconds(1));
      if (stopping_ && deliveries_.empty()) return;
      batch.swap(deliveries_);
    }
    for (const Delivery& delivery : batch) HandOver(delivery, flushes);
    for (const auto& sink : flushes) sink->Flush();
    batch.clear();
    flushes.clear();
    BreakOffLingering(MonotonicNow());
  }
}

}  // namespace bfio::worker
