#include "tests/testing/scripted_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace bfio::testing {
namespace {

using Fetched = HandedOverKv::Fetched;

// Sets the fields of a message other than its tokens. `count`: tokens of the output so far.
template <typename P, typename Message>
void Adorn(const typename P::GenerateRequest& request, const std::vector<uint32_t>& tokens, size_t count,
           Message& message) {
  message.set_prompt_tokens(static_cast<uint32_t>(request.tokenized().input_ids_size()));
  message.set_completion_tokens(static_cast<uint32_t>(P::kChunksCountAll ? count : tokens.size()));
  if (!P::WantsLogprobs(request)) return;
  for (const uint32_t token : tokens) {
    message.mutable_output_logprobs()->add_token_logprobs(-1.0f / static_cast<float>(token));
    message.mutable_output_logprobs()->add_token_ids(token);
  }
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1234, tokens.size());
}

}  // namespace

template <typename P>
ScriptedEngineOf<P>::ScriptedEngineOf(Options options)
    : options_(std::move(options)), ranks_(static_cast<size_t>(options_.ranks)) {
  counts_.by_rank.resize(ranks_.size());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr) << options_.listen;
  thread_ = std::thread([this] { Steps(); });
}

template <typename P>
ScriptedEngineOf<P>::~ScriptedEngineOf() {
  Kill();
}

template <typename P>
void ScriptedEngineOf<P>::Kill() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(killed_, true)) return;
  }
  stepped_.notify_all();
  if (options_.kv != nullptr) options_.kv->OnDeath(this);
  thread_.join();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
}

template <typename P>
void ScriptedEngineOf<P>::SetSilent(bool silent, bool healthy) {
  {
    std::lock_guard lock(mutex_);
    silent_ = silent;
    healthy_ = healthy || !silent;
  }
  stepped_.notify_all();
}

template <typename P>
void ScriptedEngineOf<P>::SetOthers(int requests, int tokens) {
  std::lock_guard lock(mutex_);
  others_ = requests;
  others_tokens_ = tokens;
}

template <typename P>
void ScriptedEngineOf<P>::SilenceLoads() {
  std::lock_guard lock(mutex_);
  slow_loads_ = true;
}

template <typename P>
void ScriptedEngineOf<P>::SetRecords(Records records) {
  std::lock_guard lock(mutex_);
  records_ = records;
}

template <typename P>
auto ScriptedEngineOf<P>::exchanges() -> std::vector<Exchange> {
  std::lock_guard lock(mutex_);
  return exchanges_;
}

template <typename P>
void ScriptedEngineOf<P>::Send(size_t number, Response response, grpc::ServerWriter<Response>* writer) {
  {
    std::lock_guard lock(mutex_);
    if constexpr (requires { response.request_id(); })
      response.set_request_id(exchanges_[number].request.request_id());
    exchanges_[number].responses.push_back(response);
  }
  writer->Write(response);
}

template <typename P>
auto ScriptedEngineOf<P>::counts() -> Counts {
  std::lock_guard lock(mutex_);
  Counts counts = counts_;
  for (const Rank& rank : ranks_) {
    counts.running += rank.running;
    counts.waiting += rank.waiting;
  }
  return counts;
}

template <typename P>
void ScriptedEngineOf<P>::Steps() {
  std::unique_lock lock(mutex_);
  while (!killed_) {
    stepped_.wait_for(lock, absl::ToChronoNanoseconds(options_.step), [this] { return killed_; });
    if (silent_) continue;
    ++step_;
    stepped_.notify_all();
  }
}

template <typename P>
bool ScriptedEngineOf<P>::NextStep(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock) {
  const int64_t now = step_;
  while (step_ == now && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  return !killed_ && !context->IsCancelled();
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::GetServerInfo(grpc::ServerContext*, const typename P::GetServerInfoRequest*,
                                                typename P::GetServerInfoResponse* response) {
  P::Describe(options_.attention_ranks ? 1 : std::max(options_.ranks, options_.all_ranks), options_.slots,
              options_.kv_tokens, *response);
  if constexpr (requires { response->kv_role(); }) {
    response->set_kv_role(options_.kv_role);
    response->set_kv_engine_id(options_.kv_engine_id);
    if (!options_.kv_role.empty()) response->set_kv_connector(options_.kv_connector);
  }
  if constexpr (requires { response->server_args(); }) {
    if (options_.attention_ranks)
      (*response->mutable_server_args()->mutable_fields())["attn_dp_size"].set_number_value(options_.ranks);
    if (options_.rooms != nullptr) {
      auto& arguments = *response->mutable_server_args()->mutable_fields();
      arguments["disaggregation_mode"].set_string_value(options_.kv_role);
      arguments["disaggregation_transfer_backend"].set_string_value("mooncake");
      arguments["disaggregation_bootstrap_port"].set_number_value(options_.bootstrap_port);
    }
  }
  return Status::OK;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::GetModelInfo(grpc::ServerContext*, const typename P::GetModelInfoRequest*,
                                               typename P::GetModelInfoResponse* response) {
  response->set_served_model_name(options_.model);
  response->set_max_context_length(options_.max_context);
  response->set_vocab_size(options_.vocabulary);
  return Status::OK;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::GetLoads(grpc::ServerContext* context, const typename P::GetLoadsRequest*,
                                           typename P::GetLoadsResponse* response) {
  std::unique_lock lock(mutex_);
  while (slow_loads_ && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  const int share = P::kKvOfAllRanks ? options_.ranks : 1;
  response->set_dp_rank_count(options_.ranks);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    auto& load = *response->add_loads();
    load.set_dp_rank(options_.first_rank + static_cast<int32_t>(r));
    load.set_num_running_reqs(ranks_[r].running + others_);
    load.set_num_waiting_reqs(ranks_[r].waiting);
    load.set_num_used_tokens(share * (ranks_[r].tokens + others_ * others_tokens_));
    load.set_max_total_num_tokens(share * options_.kv_tokens);
    if (!P::kKvOfAllRanks) load.set_max_running_requests(options_.slots);
  }
  return Status::OK;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::SubscribeKvEvents(grpc::ServerContext* context,
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
      batch.set_dp_rank(options_.first_rank + static_cast<int32_t>(r));
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
    for (const common_pb::KvEventBatch& batch : batches) writer->Write(batch);
    lock.lock();
    stepped_.wait_for(lock, std::chrono::milliseconds(20), [this] { return killed_; });
  }
  return Status::CANCELLED;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::HealthCheck(grpc::ServerContext* context,
                                              const typename P::HealthCheckRequest*,
                                              typename P::HealthCheckResponse* response) {
  const absl::Time until = absl::Now() + options_.health;
  std::unique_lock lock(mutex_);
  while ((!healthy_ || absl::Now() < until) && !killed_ && !context->IsCancelled())
    stepped_.wait_for(lock, std::chrono::milliseconds(50));
  response->set_healthy(!killed_);
  return Status::OK;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::Abort(grpc::ServerContext*, const typename P::AbortRequest* request,
                                        typename P::AbortResponse*) {
  std::lock_guard lock(mutex_);
  for (const std::string& id : P::AbortedIds(*request)) AbortAll(id);
  return Status::OK;
}

template <typename P>
void ScriptedEngineOf<P>::AbortAll(const std::string& name) {
  for (auto& [other, aborted] : names_) aborted = aborted || other.starts_with(name);
}

template <typename P>
uint32_t ScriptedEngineOf<P>::TakeCached(Rank& rank, std::vector<uint32_t> prompt) const {
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

template <typename P>
grpc::Status ScriptedEngineOf<P>::Generate(grpc::ServerContext* context, const Request* request,
                                           grpc::ServerWriter<Response>* writer) {
  {
    std::lock_guard lock(mutex_);
    names_[request->request_id()] = false;
  }
  const Status status = Run(context, *request, writer);
  std::lock_guard lock(mutex_);
  names_.erase(request->request_id());
  if (std::is_same_v<P, Sglang> && context->IsCancelled()) AbortAll(request->request_id());
  counts_.cancelled += context->IsCancelled() && !killed_;
  return killed_ ? Status(grpc::StatusCode::UNAVAILABLE, "killed") : status;
}

template <typename P>
HandedOverKv::Fetched ScriptedEngineOf<P>::Fetch(const Request& request) {
  if constexpr (requires { request.kv_transfer_params_json(); }) {
    const auto& ids = request.tokenized().input_ids();
    if (options_.kv != nullptr)
      return options_.kv->Fetch(request.kv_transfer_params_json(), {ids.begin(), ids.end()});
  }
  return Fetched::kNothing;
}

template <typename P>
bool ScriptedEngineOf<P>::Meet(grpc::ServerContext* context, const Request& request,
                               std::unique_lock<std::mutex>& lock) {
  if constexpr (requires { request.disaggregated_params(); }) {
    const auto& to = request.disaggregated_params();
    const bool computes = options_.kv_role == "prefill";
    MeetingRooms& rooms = *options_.rooms;
    // The rank is found by the room's number.
    if (computes && to.bootstrap_room() % options_.ranks != request.data_parallel_rank()) ++rooms.wrong;
    rooms.Enter(to.bootstrap_room(), computes, absl::StrCat(to.bootstrap_host(), ":", to.bootstrap_port()),
                {request.tokenized().input_ids().begin(), request.tokenized().input_ids().end()});
    while (computes ? options_.holds || !rooms.BothThere(to.bootstrap_room())
                    : !rooms.IsComputed(to.bootstrap_room()))
      if (!NextStep(context, lock)) return false;
    if (computes) rooms.Computed(to.bootstrap_room());
  }
  return true;
}

template <typename P>
grpc::Status ScriptedEngineOf<P>::Run(grpc::ServerContext* context, const Request& request,
                                      grpc::ServerWriter<Response>* writer) {
  const auto& ids = request.tokenized().input_ids();
  const bool one_rank = options_.chooses_ranks || std::max(options_.ranks, options_.all_ranks) == 1;
  if (ids.empty() || request.has_data_parallel_rank() == one_rank || request.data_parallel_rank() < 0 ||
      request.data_parallel_rank() >= options_.ranks || request.sampling_params().n() > 1) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "not what a router sends"};
  }
  if constexpr (requires { request.disaggregated_params(); }) {
    if (options_.rooms != nullptr && !request.has_disaggregated_params())
      return {grpc::StatusCode::INVALID_ARGUMENT, "Disaggregated request received without bootstrap room id"};
  }
  const auto fault = static_cast<uint32_t>(ids[0]);
  std::unique_lock lock(mutex_);
  if (fault == kBadRequest) {
    // As SGLang's servicer reports that the error was in the grammar.
    context->AddTrailingMetadata("smg-constraint-failed", "engine");
    return {grpc::StatusCode::INVALID_ARGUMENT, "a prompt that it does not like"};
  }
  if (fault == kFull && !std::exchange(was_full_, true))
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
  const size_t r = options_.chooses_ranks ? exchanges_.size() % ranks_.size()
                                          : static_cast<size_t>(request.data_parallel_rank());
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
  // A prompt whose other rank is not there yet takes no slot.
  const bool computes = options_.rooms != nullptr && options_.kv_role == "prefill";
  if (computes && !Meet(context, request, lock)) {
    --rank.waiting;
    return Status::CANCELLED;
  }
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
  // With the prompt a rank computes the first token, and no other.
  const uint32_t asked = computes ? 1 : P::MaxTokens(request.sampling_params());
  const Fetched fetched = Fetch(request);
  const uint32_t drawn = P::Samples(request) || fetched == Fetched::kWrong ? 1 : 0;
  std::vector<uint32_t> made_all;
  std::vector<Response> held;
  const auto complete = [&](const std::string& reason) {
    Response end;
    end.mutable_complete()->set_finish_reason(reason);
    const size_t count = made_all.size();
    // When streaming, engines repeat the last chunk in the completion, vLLM with that chunk's counts.
    if (request.stream() && count > 0) made_all.erase(made_all.begin(), made_all.end() - 1);
    Adorn<P>(request, made_all, count, *end.mutable_complete());
    end.mutable_complete()->set_cached_tokens(cached);
    end.mutable_complete()->mutable_output_ids()->Add(made_all.begin(), made_all.end());
    if constexpr (requires { end.mutable_complete()->kv_transfer_params_json(); }) {
      if (absl::StrContains(request.kv_transfer_params_json(), R"("do_remote_decode":true)")) {
        if (options_.kv_connector == "MooncakeConnector") {
          // The engine keeps nothing of a prompt that may end at a stop token.
          if (request.sampling_params().ignore_eos())
            options_.kv->MakeNamed(this,
                                   absl::StrCat(options_.kv_engine_id, "_dp", request.data_parallel_rank()),
                                   request.kv_transfer_params_json(), {ids.begin(), ids.end()});
        } else {
          std::string made = options_.kv->Make(this, {ids.begin(), ids.end()});
          if (!options_.spoils.empty() && number >= 4) {
            auto fields = nlohmann::json::parse(made);
            fields.merge_patch(nlohmann::json::parse(options_.spoils));
            made = fields.dump();
          }
          end.mutable_complete()->set_kv_transfer_params_json(made);
        }
      }
    }
    Send(number, end, writer);
  };
  const bool met = options_.rooms == nullptr || computes || Meet(context, request, lock);
  if (!met) status = Status::CANCELLED;
  if (fetched == Fetched::kGone) {
    lock.unlock();
    complete("error");
    lock.lock();
  }
  for (uint32_t made = 0; met && made < asked && fetched != Fetched::kGone; ++made) {
    if (!NextStep(context, lock)) {
      status = Status::CANCELLED;
      break;
    }
    Response response;
    last = NextToken(last + drawn, length++);
    ++rank.tokens;
    made_all.push_back(last);
    response.mutable_chunk()->add_token_ids(last);
    Adorn<P>(request, {last}, made_all.size(), *response.mutable_chunk());
    response.mutable_chunk()->set_cached_tokens(cached);
    if (made == 2 && fault == kTooManyTokens)
      for (uint32_t i = 0; i < asked; ++i) response.mutable_chunk()->add_token_ids(5);
    if (made == 2 && fault == kOtherOutput) response.mutable_chunk()->set_index(1);
    const bool aborted = names_.at(request.request_id()) && made + 1 < asked;
    lock.unlock();
    if (fault == kSwapped && made + 2 == asked) {
      held.push_back(response);
    } else if (request.stream() && !(fault == kMissing && made == 2)) {
      Send(number, response, writer);
      if (fault == kTwice && made == 2) Send(number, response, writer);
    }
    if (made + 1 == asked)
      for (const Response& one : held) Send(number, one, writer);
    const bool fails = made == 2 && (fault == kEngineError || fault == kEngineAbort);
    if (fails) complete(fault == kEngineError ? "error" : "abort");
    if (aborted) complete("abort");
    if (made + 1 == asked) complete("length");
    lock.lock();
    if (fails || aborted || (made == 2 && fault == kNoReason)) break;
    if (made == 2 && fault == kUnavailable) status = {grpc::StatusCode::UNAVAILABLE, "reset"};
    if (made == 2 && fault == kInternal) status = {grpc::StatusCode::INTERNAL, "reset"};
    if (!status.ok()) break;
  }
  --rank.running;
  rank.tokens -= static_cast<int>(length);
  return status;
}

template class ScriptedEngineOf<Vllm>;
template class ScriptedEngineOf<Sglang>;

}  // namespace bfio::testing
