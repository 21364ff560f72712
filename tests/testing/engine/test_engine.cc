#include "tests/testing/engine/test_engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/shutdown.h"
#include "common/base/status_macros.h"
#include "common/net/status.h"

namespace bfio::testing {
namespace {

namespace pb = ::vllm::grpc::engine;
namespace common_pb = ::smg::grpc::common;
using worker::Handle;

// How soon a call notices that its caller has left.
constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr auto kRecordInterval = std::chrono::milliseconds(100);

int64_t NowNs() {
  return absl::ToInt64Nanoseconds(MonotonicNow() - absl::UnixEpoch());
}

absl::Status CheckSupported(const pb::GenerateRequest& request) {
  const pb::SamplingParams& sampling = request.sampling_params();
  const char* const field = !request.has_tokenized()                                        ? "text"
                            : request.has_mm_inputs() || request.extra_mm_inputs_size() > 0 ? "mm_inputs"
                            : sampling.stop_size() > 0                                      ? "stop"
                            : sampling.min_tokens() > 0                                     ? "min_tokens"
                            : sampling.min_p() != 0                                         ? "min_p"
                            : sampling.has_prompt_logprobs()  ? "prompt_logprobs"
                            : sampling.constraint_case() != 0 ? "constraint"
                                                              : nullptr;
  if (field == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is not supported by this engine"));
}

worker::SequenceRequest SequenceOf(const pb::GenerateRequest& from, int64_t longest, uint64_t seed) {
  const pb::SamplingParams& sampling = from.sampling_params();
  worker::SequenceRequest to;
  to.prompt.assign(from.tokenized().input_ids().begin(), from.tokenized().input_ids().end());
  to.prompt_length = static_cast<int64_t>(to.prompt.size());
  to.max_new_tokens = sampling.has_max_tokens() ? int64_t{sampling.max_tokens()}
                                                : std::max<int64_t>(1, longest - to.prompt_length);
  to.stop_token_ids.assign(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  to.ignore_eos = sampling.ignore_eos();
  to.sampling.temperature = sampling.has_temperature() ? sampling.temperature() : 1;
  if (sampling.top_p() != 0) to.sampling.top_p = sampling.top_p();
  if (sampling.top_k() != 0) to.sampling.top_k = static_cast<int32_t>(sampling.top_k());
  // In vLLM, -1 means no seed.
  to.sampling.seed =
      sampling.has_seed() && sampling.seed() != -1 ? static_cast<uint32_t>(sampling.seed()) : seed;
  if (sampling.has_logprobs()) to.sampling.logprobs = sampling.logprobs();
  to.kv_on_demand = true;
  return to;
}

// Of an output in the course of a call: what its messages need.
struct Progress {
  uint32_t tokens = 0;
  // With stream=false: all of them.
  pb::GenerateComplete whole;
};

}  // namespace

void TestEngine::Mailbox::Put(Event event) {
  {
    std::lock_guard lock(mutex);
    events.push_back(std::move(event));
  }
  filled.notify_one();
}

TestEngine::TestEngine(Model model, std::vector<std::unique_ptr<worker::Engine>> engines,
                       worker::StepLog* log, std::unique_ptr<HandedOverKv> kv, std::string kv_role)
    : model_(std::move(model)),
      kv_(std::move(kv)),
      kv_role_(std::move(kv_role)),
      salt_(std::random_device()()),
      ranks_(engines.size()),
      balancer_(static_cast<int>(engines.size()), MonotonicNow()),
      barrier_(static_cast<std::ptrdiff_t>(engines.size()), Park{this}) {
  for (size_t i = 0; i < engines.size(); ++i) {
    ranks_[i].engine = std::move(engines[i]);
    if (log != nullptr) ranks_[i].log = log->AddRank(absl::StrCat("rank ", i));
  }
  for (size_t i = 0; i < ranks_.size(); ++i)
    ranks_[i].thread = std::thread([this, i] { Run(static_cast<int>(i)); });
}

TestEngine::~TestEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (Rank& rank : ranks_) rank.thread.join();
}

// --- ranks ---

void TestEngine::AwaitRequests() {
  std::unique_lock lock(mutex_);
  // An empty step first: the events of the last one are delivered after the barrier.
  parked_ = idle_ && sequences_.empty();
  if (parked_) wake_.wait(lock, [this] { return stopping_ || !sequences_.empty(); });
  idle_ = sequences_.empty();
  ended_ = stopping_;
}

void TestEngine::Run(int index) {
  Rank& rank = ranks_[static_cast<size_t>(index)];
  std::vector<std::pair<std::shared_ptr<Mailbox>, Event>> events;
  // Of the last step, where steps are logged.
  worker::StepReport report;
  int32_t admitted = 0;
  for (int64_t step = 1;; ++step) {
    const int64_t arrived_ns = NowNs();
    barrier_.arrive_and_wait();
    const int64_t met_ns = NowNs();
    if (rank.log != nullptr && step > 1) {
      // The wait for the next request is not the barrier's.
      report.barrier_wait_ns = parked_ ? 0 : met_ns - arrived_ns;
      rank.log->Append(rank.log->Row(report,
                                     {.rank = index, .world_size = static_cast<int32_t>(ranks_.size())},
                                     admitted, parked_ ? arrived_ns : met_ns));
    }
    for (auto& [mailbox, event] : events) mailbox->Put(std::move(event));
    if (ended_) return;
    admitted = Admit(rank);
    const int64_t begin_ns = NowNs();
    const absl::Status status = rank.engine->Step(rank.out);
    const int64_t local_ns = NowNs() - begin_ns;
    if (!status.ok()) std::abort();  // the engine is broken
    events = Follow(index, step);
    if (rank.log == nullptr) continue;
    report = {.epoch = 1, .step = step, .output = rank.out, .local_ns = local_ns};
    if (!parked_) report.gap_ns = begin_ns - met_ns;
  }
}

int32_t TestEngine::Admit(Rank& rank) {
  std::lock_guard lock(mutex_);
  for (const Handle handle : rank.cancelled) rank.engine->Cancel(handle);
  rank.cancelled.clear();
  int32_t admitted = 0;
  while (!rank.waiting.empty()) {
    const auto it = sequences_.find(rank.waiting.front());
    const absl::Status status = rank.engine->Admit(it->second.request);
    if (absl::IsResourceExhausted(status)) break;
    rank.waiting.pop_front();
    if (status.ok()) {
      it->second.running = true;
      ++admitted;
    } else {
      it->second.mailbox->Put({.output = it->second.output, .error = status});
      Erase(it);
    }
  }
  return admitted;
}

std::vector<std::pair<std::shared_ptr<TestEngine::Mailbox>, TestEngine::Event>> TestEngine::Follow(
    int index, int64_t step) {
  std::lock_guard lock(mutex_);
  Rank& rank = ranks_[static_cast<size_t>(index)];
  worker::StepOutput& out = rank.out;
  std::vector<std::pair<std::shared_ptr<Mailbox>, Event>> events;
  size_t alternatives = 0;
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    Event event{.token = out.tokens[i].id};
    if (!out.log_probabilities.empty()) event.logprob = out.log_probabilities[i];
    if (alternatives < out.alternatives.size() && out.alternatives[alternatives].token == i)
      event.top = std::move(out.alternatives[alternatives++].top);
    const auto it = sequences_.find(out.tokens[i].handle);
    if (it == sequences_.end()) continue;
    event.output = it->second.output;
    // If it is preempted, it goes on from here.
    worker::SequenceRequest& request = it->second.request;
    request.prompt.push_back(out.tokens[i].id);
    ++request.prompt_length, --request.max_new_tokens, ++request.first_index;
    events.emplace_back(it->second.mailbox, std::move(event));
  }
  const auto end = [&](Handle handle, Event event) {
    const auto it = sequences_.find(handle);
    if (it == sequences_.end()) return;
    event.output = it->second.output;
    events.emplace_back(it->second.mailbox, std::move(event));
    Erase(it);
  };
  for (const auto& [handle, cause] : out.finished)
    end(handle, {.reason = cause == worker::FinishCause::kStop ? "stop" : "length"});
  for (const auto& [handle, message] : out.failed) end(handle, {.error = absl::InternalError(message)});
  for (const Handle handle : out.preempted) {
    const auto it = sequences_.find(handle);
    if (it == sequences_.end()) continue;
    it->second.running = false;
    rank.waiting.insert(std::lower_bound(rank.waiting.begin(), rank.waiting.end(), handle), handle);
  }
  rank.running = rank.engine->active();
  rank.kv_used = rank.engine->limits().kv_tokens - rank.engine->free_kv_tokens();
  const double kv = static_cast<double>(rank.kv_used) / static_cast<double>(rank.engine->limits().kv_tokens);
  balancer_.Report(index, step, {static_cast<int64_t>(rank.waiting.size()), rank.running, kv},
                   MonotonicNow());
  return events;
}

// --- calls ---

int64_t TestEngine::LongestSequence() const {
  const worker::EngineLimits& limits = ranks_[0].engine->limits();
  return std::min(limits.max_sequence_tokens, limits.kv_tokens);
}

absl::StatusOr<std::vector<Handle>> TestEngine::Submit(const pb::GenerateRequest& request,
                                                       const std::shared_ptr<Mailbox>& mailbox) {
  BFIO_RETURN_IF_ERROR(CheckSupported(request));
  std::lock_guard lock(mutex_);
  worker::SequenceRequest first = SequenceOf(request, LongestSequence(), salt_ ^ (last_ << 20));
  if (first.prompt_length + first.max_new_tokens > LongestSequence()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt + max_tokens is ",
                                                   first.prompt_length + first.max_new_tokens,
                                                   "; the engine holds at most ", LongestSequence()));
  }
  const bool named = request.has_data_parallel_rank();
  if (named && (request.data_parallel_rank() < 0 || request.data_parallel_rank() >= std::ssize(ranks_))) {
    return absl::InvalidArgumentError(absl::StrCat("data_parallel_rank is ", request.data_parallel_rank(),
                                                   "; it must be below ", ranks_.size()));
  }
  if (!request.request_id().empty() && names_.contains(request.request_id()))
    return absl::AlreadyExistsError(absl::StrCat("a live request has the id ", request.request_id()));
  std::vector<Handle> handles;
  for (uint32_t i = 0; i < std::max(1u, request.sampling_params().n()); ++i) {
    Sequence sequence = {first, i, named ? request.data_parallel_rank() : balancer_.Choose(MonotonicNow()),
                         mailbox};
    if (named) balancer_.Pin(sequence.rank);
    sequence.request.handle = ++last_;
    sequence.request.sampling.seed += i;
    ranks_[static_cast<size_t>(sequence.rank)].waiting.push_back(last_);
    handles.push_back(last_);
    sequences_.emplace(last_, std::move(sequence));
  }
  if (!request.request_id().empty()) names_[request.request_id()] = handles;
  wake_.notify_one();
  return handles;
}

void TestEngine::Erase(Sequences::iterator sequence) {
  balancer_.End(sequence->second.rank);
  sequences_.erase(sequence);
}

void TestEngine::Drop(const std::vector<Handle>& handles, const std::string& reason) {
  std::lock_guard lock(mutex_);
  for (const Handle handle : handles) {
    const auto it = sequences_.find(handle);
    if (it == sequences_.end()) continue;
    Rank& rank = ranks_[static_cast<size_t>(it->second.rank)];
    if (it->second.running) {
      rank.cancelled.push_back(handle);
    } else {
      std::erase(rank.waiting, handle);
    }
    if (!reason.empty()) it->second.mailbox->Put({.output = it->second.output, .reason = reason});
    Erase(it);
  }
}

grpc::Status TestEngine::Generate(grpc::ServerContext* context, const pb::GenerateRequest* request,
                                  grpc::ServerWriter<pb::GenerateResponse>* writer) {
  const std::vector<uint32_t> prompt(request->tokenized().input_ids().begin(),
                                     request->tokenized().input_ids().end());
  const std::string& transfer = request->kv_transfer_params_json();
  const auto fetched = kv_ == nullptr ? HandedOverKv::Fetched::kNothing : kv_->Fetch(transfer, prompt);
  if (fetched == HandedOverKv::Fetched::kGone) {
    pb::GenerateResponse failed;
    failed.mutable_complete()->set_finish_reason("error");
    writer->Write(failed);
    return Status::OK;
  }
  const auto mailbox = std::make_shared<Mailbox>();
  const absl::StatusOr<std::vector<Handle>> handles = Submit(*request, mailbox);
  if (!handles.ok()) return ToGrpcStatus(handles.status());
  const pb::SamplingParams& sampling = request->sampling_params();
  std::vector<Progress> outputs(handles->size());
  Status status;
  for (size_t left = outputs.size(); left > 0 && status.ok();) {
    std::vector<Event> events;
    {
      std::unique_lock lock(mailbox->mutex);
      mailbox->filled.wait_for(lock, kPoll, [&] { return !mailbox->events.empty(); });
      std::swap(events, mailbox->events);
    }
    if (context->IsCancelled()) status = Status::CANCELLED;
    for (Event& event : events) {
      Progress& output = outputs[event.output];
      pb::GenerateResponse response;
      const auto fill = [&](auto& to) {
        to.set_index(event.output);
        to.set_prompt_tokens(static_cast<uint32_t>(request->tokenized().input_ids_size()));
      };
      if (event.token) {
        // From other KV come other tokens.
        if (fetched == HandedOverKv::Fetched::kWrong) ++*event.token;
        ++output.tokens;
        pb::GenerateStreamChunk& chunk = *response.mutable_chunk();
        fill(chunk);
        chunk.add_token_ids(*event.token);
        chunk.set_completion_tokens(1);
        output.whole.add_output_ids(*event.token);
        if (sampling.has_logprobs()) {
          pb::OutputLogProbs& logprobs =
              *(request->stream() ? chunk.mutable_output_logprobs() : output.whole.mutable_output_logprobs());
          logprobs.add_token_logprobs(event.logprob);
          logprobs.add_token_ids(*event.token);
          pb::TopLogProbs* const top = sampling.logprobs() > 0 ? logprobs.add_top_logprobs() : nullptr;
          for (const worker::TopToken& token : event.top) {
            if (top == nullptr) break;
            top->add_token_ids(token.id);
            top->add_values(token.logprob);
          }
        }
        if (request->stream()) writer->Write(response);
      }
      if (!event.ends()) continue;
      --left;
      if (!event.error.ok()) {
        status = ToGrpcStatus(event.error);
        break;
      }
      pb::GenerateComplete& end = *response.mutable_complete();
      const auto& tokens = output.whole.output_ids();
      const auto& stops = sampling.stop_token_ids();
      const bool listed = !tokens.empty() && std::count(stops.begin(), stops.end(), *tokens.rbegin()) > 0;
      if (event.reason == "stop" && listed) end.set_matched_token_id(*tokens.rbegin());
      if (!request->stream()) end = std::move(output.whole);
      fill(end);
      end.set_completion_tokens(output.tokens);
      end.set_finish_reason(event.reason);
      if (kv_ != nullptr && absl::StrContains(transfer, R"("do_remote_decode":true)"))
        end.set_kv_transfer_params_json(kv_->Make(this, prompt));
      writer->Write(response);
    }
  }
  Drop(*handles, "");
  std::lock_guard lock(mutex_);
  names_.erase(request->request_id());
  return status;
}

grpc::Status TestEngine::Abort(grpc::ServerContext*, const pb::AbortRequest* request, pb::AbortResponse*) {
  for (const std::string& id : request->request_ids()) {
    std::unique_lock lock(mutex_);
    const auto it = names_.find(id);
    if (it == names_.end()) continue;
    const std::vector<Handle> handles = it->second;
    lock.unlock();
    Drop(handles, "abort");
  }
  return Status::OK;
}

// --- descriptions ---

grpc::Status TestEngine::HealthCheck(grpc::ServerContext*, const pb::HealthCheckRequest*,
                                     pb::HealthCheckResponse* response) {
  response->set_healthy(true);
  return Status::OK;
}

grpc::Status TestEngine::GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                                      pb::GetModelInfoResponse* response) {
  response->set_is_generation(true);
  response->set_served_model_name(model_.name);
  response->set_model_path(model_.tokenizer.empty() ? model_.name : model_.tokenizer);
  response->set_tokenizer_path(model_.tokenizer);
  response->set_max_context_length(static_cast<uint32_t>(LongestSequence()));
  response->set_max_req_input_len(static_cast<int32_t>(LongestSequence()));
  return Status::OK;
}

grpc::Status TestEngine::GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                                       pb::GetServerInfoResponse* response) {
  response->set_server_type("vllm-grpc");
  response->set_data_parallel_size(static_cast<int32_t>(ranks_.size()));
  response->set_max_num_seqs(ranks_[0].engine->limits().slots);
  if (kv_ == nullptr) return Status::OK;
  response->set_kv_connector("NixlConnector");
  response->set_kv_role(kv_role_);
  return Status::OK;
}

// Each rank's memory, and its use, is that of all ranks: vLLM adds up the memory of its ranks.
std::vector<pb::SchedulerLoad> TestEngine::Loads() {
  std::lock_guard lock(mutex_);
  std::vector<pb::SchedulerLoad> loads(ranks_.size());
  const auto ranks = static_cast<int64_t>(ranks_.size());
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    const worker::EngineLimits& limits = rank.engine->limits();
    pb::SchedulerLoad& load = loads[i];
    int64_t prompts = 0;
    for (const Handle handle : rank.waiting) prompts += sequences_.at(handle).request.prompt_length;
    load.set_dp_rank(static_cast<int32_t>(i));
    load.set_num_running_reqs(static_cast<int32_t>(rank.running));
    load.set_num_waiting_reqs(static_cast<int32_t>(rank.waiting.size()));
    load.set_num_total_reqs(load.num_running_reqs() + load.num_waiting_reqs());
    load.set_num_used_tokens(static_cast<int32_t>(std::min(kMost, ranks * rank.kv_used)));
    load.set_max_total_num_tokens(static_cast<int32_t>(std::min(kMost, ranks * limits.kv_tokens)));
    load.set_token_usage(static_cast<double>(rank.kv_used) / static_cast<double>(limits.kv_tokens));
    load.set_max_running_requests(limits.slots);
    load.set_num_waiting_uncached_tokens(static_cast<int32_t>(prompts));
  }
  return loads;
}

grpc::Status TestEngine::GetLoads(grpc::ServerContext*, const pb::GetLoadsRequest* request,
                                  pb::GetLoadsResponse* response) {
  response->set_dp_rank_count(static_cast<int32_t>(ranks_.size()));
  for (const pb::SchedulerLoad& load : Loads()) {
    if (!request->has_dp_rank() || request->dp_rank() == load.dp_rank()) *response->add_loads() = load;
  }
  return Status::OK;
}

grpc::Status TestEngine::SubscribeKvEvents(grpc::ServerContext* context,
                                           const common_pb::SubscribeKvEventsRequest* request,
                                           grpc::ServerWriter<common_pb::KvEventBatch>* writer) {
  if (!request->load_records_before_first_batch())
    return {grpc::StatusCode::UNIMPLEMENTED, "no KV cache events"};
  for (uint64_t sample = 1; !context->IsCancelled() && !ShutdownSignal::Requested();) {
    for (const pb::SchedulerLoad& load : Loads()) {
      common_pb::KvEventBatch batch;
      batch.set_dp_rank(load.dp_rank());
      common_pb::EngineLoad& record = *batch.mutable_load();
      record.set_running_requests(static_cast<uint32_t>(load.num_running_reqs()));
      record.set_waiting_requests(static_cast<uint32_t>(load.num_waiting_reqs()));
      record.set_waiting_uncached_tokens(static_cast<uint32_t>(load.num_waiting_uncached_tokens()));
      record.set_token_usage(load.token_usage());
      record.set_active_token_usage(load.token_usage());
      record.set_max_running_requests(static_cast<uint32_t>(load.max_running_requests()));
      record.set_sample(sample++);
      record.set_load_only(true);
      record.set_num_used_tokens(load.num_used_tokens());
      record.set_max_total_num_tokens(load.max_total_num_tokens());
      if (!writer->Write(batch)) return Status::CANCELLED;
    }
    std::this_thread::sleep_for(kRecordInterval);
  }
  return Status::CANCELLED;
}

namespace {

constexpr double kWaitingWeight = 6;
constexpr double kFreeKvShare = 0.5;
constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr absl::Duration kIntervalWithoutNews = absl::Seconds(5);
// Bound of the time between the ranks' reports of one step.
constexpr absl::Duration kStepSpread = absl::Milliseconds(50);

}  // namespace

RankBalancer::RankBalancer(int ranks, absl::Time now)
    : in_flight_(static_cast<size_t>(ranks)),
      published_(static_cast<size_t>(ranks)),
      counts_(static_cast<size_t>(ranks)),
      published_at_(now),
      waits_since_(now) {}

int RankBalancer::Choose(absl::Time now) {
  PublishDue(now);
  const size_t ranks = published_.size();
  double least = std::numeric_limits<double>::infinity();
  size_t chosen = 0;
  for (size_t i = 0; i < ranks; ++i) {
    const size_t rank = (static_cast<size_t>(start_) + i) % ranks;
    const Counts& counts = published_[rank];
    double score = static_cast<double>(std::max(in_flight_[rank], counts.waiting + counts.running));
    score += static_cast<double>(counts.waiting) * kWaitingWeight * std::max(0.0, counts.kv - kFreeKvShare);
    if (score >= least) continue;
    least = score;
    chosen = rank;
  }
  ++published_[chosen].waiting;
  ++in_flight_[chosen];
  start_ = static_cast<int>((static_cast<size_t>(start_) + 1) % ranks);
  return static_cast<int>(chosen);
}

void RankBalancer::Report(int rank, int64_t step, const Counts& counts, absl::Time now) {
  Counts& mine = counts_[static_cast<size_t>(rank)];
  // A change of the memory in use alone is not published.
  if (mine.waiting == counts.waiting && mine.running == counts.running) return;
  PublishDue(now);
  if (step > step_) {
    if (changed_) whole_step_ = counts_;
    step_ = step;
  }
  mine = counts;
  changed_ = true;
  waits_since_ = now;
}

void RankBalancer::PublishDue(absl::Time now) {
  for (;;) {
    const absl::Duration interval = changed_ ? kInterval : kIntervalWithoutNews;
    const absl::Duration least = whole_step_ ? absl::ZeroDuration() : kStepSpread;
    absl::Time due = std::max(waits_since_ + least, published_at_ + interval);
    if (due > now) return;
    if (whole_step_) {
      published_ = *std::exchange(whole_step_, std::nullopt);
    } else {
      published_ = counts_;
      // An unchanged state is not published again.
      if (!changed_) due = now - (now - due) % kIntervalWithoutNews;
      changed_ = false;
    }
    published_at_ = waits_since_ = due;
  }
}

}  // namespace bfio::testing
