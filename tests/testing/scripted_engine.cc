#include "tests/testing/scripted_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"

namespace bfio::testing {
namespace {

namespace pb = ::vllm::grpc::engine;
namespace common_pb = ::smg::grpc::common;

// Sets the fields of a response other than its tokens.
template <typename Message>
void Adorn(const pb::GenerateRequest& request, const std::vector<uint32_t>& tokens, Message& message) {
  message.set_prompt_tokens(static_cast<uint32_t>(request.tokenized().input_ids_size()));
  message.set_completion_tokens(static_cast<uint32_t>(tokens.size()));
  if (!request.sampling_params().has_logprobs()) return;
  for (const uint32_t token : tokens) {
    message.mutable_output_logprobs()->add_token_logprobs(-1.0f / static_cast<float>(token));
    message.mutable_output_logprobs()->add_token_ids(token);
  }
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1234, tokens.size());
}

}  // namespace

uint32_t NextToken(uint32_t last, size_t length) {
  return static_cast<uint32_t>((last * 7919ull + length * 104729ull) % 30'000) + 1'000;
}

std::vector<uint32_t> TokensAfter(const std::vector<uint32_t>& prompt, size_t count) {
  std::vector<uint32_t> tokens;
  uint32_t last = prompt.back();
  for (size_t i = 0; i < count; ++i) tokens.push_back(last = NextToken(last, prompt.size() + i));
  return tokens;
}

ScriptedEngine::ScriptedEngine(Options options)
    : options_(std::move(options)), ranks_(static_cast<size_t>(options_.ranks)) {
  counts_.by_rank.resize(ranks_.size());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr) << options_.listen;
  thread_ = std::thread([this] { Steps(); });
}

ScriptedEngine::~ScriptedEngine() {
  Kill();
}

void ScriptedEngine::Kill() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(killed_, true)) return;
  }
  stepped_.notify_all();
  thread_.join();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

void ScriptedEngine::SetSilent(bool silent, bool healthy) {
  {
    std::lock_guard lock(mutex_);
    silent_ = silent;
    healthy_ = healthy || !silent;
  }
  stepped_.notify_all();
}

void ScriptedEngine::SetOthers(int requests, int tokens) {
  std::lock_guard lock(mutex_);
  others_ = requests;
  others_tokens_ = tokens;
}

void ScriptedEngine::SetLoads(Loads loads) {
  std::lock_guard lock(mutex_);
  loads_ = loads;
}

void ScriptedEngine::SetRecords(Records records) {
  std::lock_guard lock(mutex_);
  records_ = records;
}

std::vector<ScriptedEngine::Exchange> ScriptedEngine::exchanges() {
  std::lock_guard lock(mutex_);
  return exchanges_;
}

void ScriptedEngine::Send(size_t number, const pb::GenerateResponse& response,
                          grpc::ServerWriter<pb::GenerateResponse>* writer) {
  {
    std::lock_guard lock(mutex_);
    exchanges_[number].responses.push_back(response);
  }
  writer->Write(response);
}

ScriptedEngine::Counts ScriptedEngine::counts() {
  std::lock_guard lock(mutex_);
  Counts counts = counts_;
  for (const Rank& rank : ranks_) {
    counts.running += rank.running;
    counts.waiting += rank.waiting;
  }
  return counts;
}

void ScriptedEngine::Steps() {
  std::unique_lock lock(mutex_);
  while (!killed_) {
    stepped_.wait_for(lock, absl::ToChronoNanoseconds(options_.step), [this] { return killed_; });
    if (silent_) continue;
    ++step_;
    stepped_.notify_all();
  }
}

bool ScriptedEngine::NextStep(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock) {
  const int64_t now = step_;
  while (step_ == now && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  return !killed_ && !context->IsCancelled();
}

grpc::Status ScriptedEngine::GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                                           pb::GetServerInfoResponse* response) {
  response->set_server_type("vllm-grpc");
  response->set_data_parallel_size(std::max(options_.ranks, options_.all_ranks));
  response->set_max_num_seqs(options_.slots);
  return Status::OK;
}

grpc::Status ScriptedEngine::GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                                          pb::GetModelInfoResponse* response) {
  response->set_served_model_name(options_.model);
  response->set_max_context_length(options_.max_context);
  return Status::OK;
}

grpc::Status ScriptedEngine::GetLoads(grpc::ServerContext* context, const pb::GetLoadsRequest*,
                                      pb::GetLoadsResponse* response) {
  std::unique_lock lock(mutex_);
  while (loads_ == Loads::kSlow && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  const int times = loads_ == Loads::kWrong ? 1'000'000 : 1;
  response->set_dp_rank_count(options_.ranks);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    pb::SchedulerLoad& load = *response->add_loads();
    const int32_t wrong = loads_ == Loads::kWrongRank ? 1'000 : 0;
    load.set_dp_rank(options_.first_rank + static_cast<int32_t>(r) + wrong);
    load.set_num_running_reqs(times * (ranks_[r].running + others_) + times - 1);
    load.set_num_waiting_reqs(ranks_[r].waiting);
    load.set_num_used_tokens(options_.ranks * (ranks_[r].tokens + others_ * others_tokens_) +
                             (times - 1) * 1'000);
    load.set_max_total_num_tokens(options_.ranks * options_.kv_tokens);
  }
  return Status::OK;
}

grpc::Status ScriptedEngine::SubscribeKvEvents(grpc::ServerContext* context,
                                               const common_pb::SubscribeKvEventsRequest* request,
                                               grpc::ServerWriter<common_pb::KvEventBatch>* writer) {
  std::unique_lock lock(mutex_);
  ++counts_.subscriptions;
  const Records records = records_;
  if (records == Records::kNone || request->start_sequence_number() > 0)
    return {grpc::StatusCode::UNIMPLEMENTED, "KV cache events not enabled"};
  uint64_t sample = 0;
  for (int sent = 0; !killed_ && !context->IsCancelled(); ++sent) {
    if (records_ != records || (records == Records::kReset && sent == 3))
      return {grpc::StatusCode::UNAVAILABLE, "reset"};
    std::vector<common_pb::KvEventBatch> batches;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      common_pb::KvEventBatch& batch = batches.emplace_back();
      const int32_t wrong = records == Records::kWrongRank ? 1'000 : 0;
      batch.set_dp_rank(options_.first_rank + static_cast<int32_t>(r) + wrong);
      common_pb::EngineLoad& load = *batch.mutable_load();
      load.set_running_requests(static_cast<uint32_t>(ranks_[r].running + others_));
      load.set_waiting_requests(static_cast<uint32_t>(ranks_[r].waiting));
      load.set_token_usage((ranks_[r].tokens + others_ * others_tokens_ + 0.5) / options_.kv_tokens);
      load.set_sample(sample += 2);
      if (records != Records::kOutOfOrder) continue;
      common_pb::KvEventBatch old = batch;
      old.mutable_load()->clear_running_requests();
      old.mutable_load()->set_sample(sample - 1);
      batches.push_back(std::move(old));
    }
    lock.unlock();
    for (const common_pb::KvEventBatch& batch : batches)
      if (records != Records::kSilent) writer->Write(batch);
    lock.lock();
    stepped_.wait_for(lock, std::chrono::milliseconds(20), [this] { return killed_; });
  }
  return Status::CANCELLED;
}

grpc::Status ScriptedEngine::HealthCheck(grpc::ServerContext* context, const pb::HealthCheckRequest*,
                                         pb::HealthCheckResponse* response) {
  const absl::Time until = absl::Now() + options_.health;
  std::unique_lock lock(mutex_);
  while ((!healthy_ || absl::Now() < until) && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  response->set_healthy(!killed_);
  return Status::OK;
}

uint32_t ScriptedEngine::TakeCached(Rank& rank, std::vector<uint32_t> prompt) const {
  if (!options_.prefix_cache) return 0;
  constexpr size_t kBlock = 16;
  size_t most = 0;
  for (const std::vector<uint32_t>& earlier : rank.prompts) {
    const auto differ = std::mismatch(prompt.begin(), prompt.end(), earlier.begin(), earlier.end()).first;
    most = std::max(most, static_cast<size_t>(differ - prompt.begin()));
  }
  // At least the last token must be computed.
  most = std::min(most, prompt.size() - 1) / kBlock * kBlock;
  rank.prompts.push_back(std::move(prompt));
  return static_cast<uint32_t>(most);
}

grpc::Status ScriptedEngine::Generate(grpc::ServerContext* context, const pb::GenerateRequest* request,
                                      grpc::ServerWriter<pb::GenerateResponse>* writer) {
  const Status status = Run(context, *request, writer);
  std::lock_guard lock(mutex_);
  counts_.cancelled += context->IsCancelled() && !killed_;
  return killed_ ? Status(grpc::StatusCode::UNAVAILABLE, "killed") : status;
}

grpc::Status ScriptedEngine::Run(grpc::ServerContext* context, const pb::GenerateRequest& request,
                                 grpc::ServerWriter<pb::GenerateResponse>* writer) {
  const auto& ids = request.tokenized().input_ids();
  const bool one_rank = std::max(options_.ranks, options_.all_ranks) == 1;
  if (ids.empty() || request.has_data_parallel_rank() == one_rank || request.data_parallel_rank() < 0 ||
      request.data_parallel_rank() >= options_.ranks || request.sampling_params().n() > 1) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "not what a router sends"};
  }
  const auto r = static_cast<size_t>(request.data_parallel_rank());
  const auto fault = static_cast<uint32_t>(ids[0]);
  std::unique_lock lock(mutex_);
  if (fault == kBadRequest) return {grpc::StatusCode::INVALID_ARGUMENT, "a prompt that it does not like"};
  if (fault == kFull && !std::exchange(was_full_, true))
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
  Rank& rank = ranks_[r];
  const size_t number = exchanges_.size();
  const auto trace = context->client_metadata().find("traceparent");
  exchanges_.push_back({request,
                        {},
                        trace == context->client_metadata().end()
                            ? std::string()
                            : std::string(trace->second.data(), trace->second.size())});
  ++counts_.taken;
  ++counts_.by_rank[r];
  ++rank.waiting;
  while (rank.running + others_ >= options_.slots) {
    counts_.longest_queue = std::max(counts_.longest_queue, rank.waiting);
    if (NextStep(context, lock)) continue;
    --rank.waiting;
    return Status::CANCELLED;
  }
  --rank.waiting;
  ++rank.running;
  rank.tokens += ids.size();
  const uint32_t cached = TakeCached(rank, {ids.begin(), ids.end()});
  uint32_t last = ids[ids.size() - 1];
  size_t length = static_cast<size_t>(ids.size());
  Status status = Status::OK;
  const uint32_t asked = request.sampling_params().max_tokens();
  // Without a temperature in the request, vLLM samples at temperature 1.
  const uint32_t drawn = request.sampling_params().has_temperature() ? 0 : 1;
  std::vector<uint32_t> made_all;
  std::vector<pb::GenerateResponse> held;
  const auto complete = [&](const std::string& reason) {
    pb::GenerateResponse end;
    end.mutable_complete()->set_finish_reason(reason);
    // When streaming, vLLM repeats the last chunk in the completion, with that chunk's counts.
    if (request.stream()) made_all.erase(made_all.begin(), made_all.end() - 1);
    Adorn(request, made_all, *end.mutable_complete());
    end.mutable_complete()->set_cached_tokens(cached);
    end.mutable_complete()->mutable_output_ids()->Add(made_all.begin(), made_all.end());
    Send(number, end, writer);
  };
  for (uint32_t made = 0; made < asked; ++made) {
    if (!NextStep(context, lock)) {
      status = Status::CANCELLED;
      break;
    }
    pb::GenerateResponse response;
    last = NextToken(last + drawn, length++);
    ++rank.tokens;
    made_all.push_back(last);
    response.mutable_chunk()->add_token_ids(last);
    Adorn(request, {last}, *response.mutable_chunk());
    response.mutable_chunk()->set_cached_tokens(cached);
    if (made == 2 && fault == kTooManyTokens)
      for (uint32_t i = 0; i < asked; ++i) response.mutable_chunk()->add_token_ids(5);
    if (made == 2 && fault == kOtherOutput) response.mutable_chunk()->set_index(1);
    lock.unlock();
    if (fault == kSwapped && made + 2 == asked) {
      held.push_back(response);
    } else if (request.stream() && !(fault == kMissing && made == 2)) {
      Send(number, response, writer);
      if (fault == kTwice && made == 2) Send(number, response, writer);
    }
    if (made + 1 == asked)
      for (const pb::GenerateResponse& one : held) Send(number, one, writer);
    const bool fails = made == 2 && (fault == kEngineError || fault == kEngineAbort);
    if (fails) complete(fault == kEngineError ? "error" : "abort");
    if (made + 1 == asked) complete("length");
    lock.lock();
    if (fails || (made == 2 && fault == kNoReason)) break;
    if (made == 2 && fault == kUnavailable) status = {grpc::StatusCode::UNAVAILABLE, "reset"};
    if (made == 2 && fault == kInternal) status = {grpc::StatusCode::INTERNAL, "reset"};
    if (!status.ok()) break;
  }
  --rank.running;
  rank.tokens -= static_cast<int>(length);
  return status;
}

}  // namespace bfio::testing
