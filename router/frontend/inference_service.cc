#include "router/frontend/inference_service.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/auth/bearer_tokens.h"
#include "common/base/out_of_range.h"
#include "common/base/status_macros.h"
#include "common/net/status.h"
#include "common/net/wire_time.h"
#include "router/requests/check_request.h"

namespace bfio::router {
namespace {

void Fill(const Loads& loads, v1::GetLoadsResponse& out) {
  SetTimestamp(loads.timestamp, out.mutable_timestamp());
  out.set_version(loads.version);
  out.set_dp_rank_count(loads.ranks);
  for (const RankLoad& from : loads.loads) {
    v1::SchedulerLoad& load = *out.add_loads();
    load.set_dp_rank(from.rank);
    load.set_num_running_reqs(static_cast<uint32_t>(from.running_requests));
    load.set_num_waiting_reqs(static_cast<uint32_t>(from.waiting_requests));
    load.set_num_total_reqs(static_cast<uint32_t>(from.running_requests + from.waiting_requests));
    load.set_num_used_tokens(static_cast<uint64_t>(from.used_tokens));
    load.set_max_total_num_tokens(static_cast<uint64_t>(from.max_tokens));
    load.set_token_usage(static_cast<double>(from.used_tokens) / static_cast<double>(from.max_tokens));
    load.set_gen_throughput(from.tokens_per_second);
    load.set_utilization(static_cast<double>(from.running_requests) / static_cast<double>(from.slots));
    load.set_max_running_requests(static_cast<uint32_t>(from.slots));
  }
}

}  // namespace

InferenceService::InferenceService(RequestHandler* handler, Authenticator* authenticator,
                                   FirstMessages* messages, const RequestLimits& request_limits,
                                   const StreamLimits& stream_limits, ClientSecrets secrets)
    : handler_(handler),
      authenticator_(authenticator),
      messages_(messages),
      request_limits_(request_limits),
      stream_limits_(stream_limits),
      secrets_(std::move(secrets)) {
  Add("/bfio.v1.Inference/Generate",
      [this](grpc::CallbackServerContext* context) { return Generate(context); });
  Add("/bfio.v1.Inference/Abort", [this](grpc::CallbackServerContext* context) { return Abort(context); });
  Add("/bfio.v1.Inference/GetLoads",
      [this](grpc::CallbackServerContext* context) { return GetLoads(context); });
}

ClientStream* InferenceService::Generate(grpc::CallbackServerContext* context) {
  absl::StatusOr<Caller> caller = authenticator_->Identify(*context);
  const absl::StatusOr<Peer> allowed = PeerOf(*context, caller);
  const core::RequestId id = handler_->NextId();
  ClientStream::Options options;
  options.id = id;
  options.traceparent = TraceparentOf(*context);
  options.limits = stream_limits_;
  options.open = &streams_;
  options.on_cancel = [handler = handler_, id](bool timed_out) { handler->Cancel(id, timed_out); };
  if (caller.ok()) {
    options.on_request = [this, from = *std::move(caller), deadline = absl::FromChrono(context->deadline())](
                             const std::shared_ptr<ClientStream>& stream, v1::GenerateRequest request) {
      return Submit(std::move(request), from, deadline, stream);
    };
  }
  const std::shared_ptr<ClientStream> stream = ClientStream::Create(context, std::move(options));
  stream->Begin(allowed, messages_);
  return stream.get();  // kept alive by itself until OnDone
}

absl::Status InferenceService::Submit(v1::GenerateRequest request, const Caller& caller, absl::Time deadline,
                                      const std::shared_ptr<ClientStream>& stream) {
  const core::RequestId id = stream->id();
  std::string request_id = request.request_id().empty() ? secrets_.new_request_id() : request.request_id();
  stream->SetRequestId(request_id);
  std::string tenant = request.tenant();
  BFIO_RETURN_IF_ERROR(authenticator_->CheckTenant(caller, tenant));
  BFIO_ASSIGN_OR_RETURN(ClientRequest converted,
                        ToClientRequest(request, std::move(request_id), std::move(tenant), request_limits_));
  const absl::Time now = absl::Now();
  if (auto model = secrets_.tickets.ModelOf(request.resume_ticket(), converted, now)) {
    converted.resume_proven = true;
    converted.model = *std::move(model);
  }
  stream->SetResumeTicket(secrets_.tickets.Prepare(converted, deadline, now));
  request = v1::GenerateRequest();  // frees its copy of the prompt, which is now in `converted`
  return handler_->Submit(std::move(converted), {{id, stream}});
}

InferenceService::AbortCall* InferenceService::Abort(grpc::CallbackServerContext* context) {
  absl::StatusOr<Caller> caller = authenticator_->Identify(*context);
  const absl::StatusOr<Peer> allowed = PeerOf(*context, caller);
  return AbortCall::Begin(context, allowed, messages_,
                          [this, caller = std::move(caller)](const std::shared_ptr<AbortCall>& call,
                                                             const v1::AbortRequest& request) {
                            std::string tenant = request.tenant();
                            absl::Status asked = authenticator_->CheckTenant(*caller, tenant);
                            if (asked.ok()) {
                              asked = handler_->Abort(
                                  {std::move(tenant), request.request_id(), request.resume_token()},
                                  [call](const absl::StatusOr<bool>& found) {
                                    if (!found.ok()) return call->Reply(found.status());
                                    v1::AbortResponse response;
                                    response.set_found(*found);
                                    call->Reply(std::move(response));
                                  });
                            }
                            if (!asked.ok()) call->Reply(asked);
                          });
}

InferenceService::LoadsCall* InferenceService::GetLoads(grpc::CallbackServerContext* context) {
  return LoadsCall::Begin(context, authenticator_->Check(*context), messages_,
                          [this](const std::shared_ptr<LoadsCall>& call, const v1::GetLoadsRequest& request) {
                            std::optional<uint32_t> rank;
                            if (request.has_dp_rank()) rank = request.dp_rank();
                            const absl::Status asked =
                                handler_->GetLoads(rank, [call](const absl::StatusOr<Loads>& loads) {
                                  if (!loads.ok()) return call->Reply(loads.status());
                                  v1::GetLoadsResponse response;
                                  Fill(*loads, response);
                                  call->Reply(std::move(response));
                                });
                            if (!asked.ok()) call->Reply(asked);
                          });
}

namespace {

v1::FinishReason ToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop: return v1::FINISH_REASON_STOP;
    case FinishReason::kAbort: return v1::FINISH_REASON_ABORT;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillFinish(const Finish& from, v1::Finish& out) {
  out.set_reason(ToWire(from.reason));
  out.mutable_usage()->set_prompt_tokens(from.prompt_tokens);
  out.mutable_usage()->set_completion_tokens(from.completion_tokens);
  v1::Timing& timing = *out.mutable_timing();
  SetDuration(from.queue, timing.mutable_queue());
  if (from.time_to_first_token) {
    SetDuration(*from.time_to_first_token, timing.mutable_time_to_first_token());
  }
  SetDuration(from.end_to_end, timing.mutable_end_to_end());
  timing.set_wait_steps(static_cast<uint64_t>(std::max<int64_t>(0, from.wait_steps)));
  if (from.rank) out.set_dp_rank(*from.rank);
}

void FillLogprobs(const LogprobsView& from, v1::Logprobs& out) {
  out.mutable_token_logprobs()->Add(from.tokens.begin(), from.tokens.end());
  for (const TopToken& top : from.top) {
    out.add_top_token_ids(top.id);
    out.add_top_logprobs(top.logprob);
  }
}

}  // namespace

std::shared_ptr<ClientStream> ClientStream::Create(grpc::CallbackServerContext* context, Options options) {
  std::shared_ptr<ClientStream> stream(new ClientStream(context, std::move(options)));
  stream->Open(stream);
  return stream;
}

ClientStream::Delivery ClientStream::Deliver(uint32_t index, absl::Span<const uint32_t> tokens,
                                             const LogprobsView& logprobs, absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended() || broken()) return Delivery::kTaken;
  if (TooSlow(static_cast<int64_t>(pending_.size()) + pending_logprobs_.view().words(),
              static_cast<int64_t>(tokens.size()) + logprobs.words(), options_.limits, now)) {
    return Delivery::kTooSlow;
  }
  if (pending_.empty()) pending_first_index_ = index;
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  pending_logprobs_.Append(logprobs);
  return MarkDirty() ? Delivery::kFlush : Delivery::kTaken;
}

void ClientStream::CatchUp(uint32_t index, absl::Span<const uint32_t> tokens, const LogprobsView& logprobs) {
  MutexLock lock(&mutex_);
  pending_first_index_ = index;
  pending_.assign(tokens.begin(), tokens.end());
  pending_logprobs_.Clear();
  pending_logprobs_.Append(logprobs);
}

bool ClientStream::End(const absl::Status& status, std::optional<router::Finish> finish) {
  MutexLock lock(&mutex_);
  if (!SetEnd(ToGrpcStatus(status))) return false;
  // The remaining tokens of a cancelled request are not sent.
  if (absl::IsCancelled(status)) {
    pending_.clear();
    pending_logprobs_.Clear();
  }
  if (status.ok()) finish_ = std::move(finish);
  return MarkDirty();
}

bool ClientStream::Next(v1::GenerateResponse& response) {
  if (pending_.empty() && !finish_) return false;
  if (response.request_id().empty()) response.set_request_id(request_id_);
  response.set_first_index(pending_.empty() ? finish_->completion_tokens : pending_first_index_);
  response.mutable_token_ids()->Assign(pending_.begin(), pending_.end());
  pending_.clear();
  response.clear_logprobs();
  if (!pending_logprobs_.empty()) FillLogprobs(pending_logprobs_.view(), *response.mutable_logprobs());
  pending_logprobs_.Clear();
  response.clear_resume_ticket();
  if (issue_ticket_ != nullptr) response.set_resume_ticket(std::exchange(issue_ticket_, nullptr)(model_));
  if (finish_) FillFinish(*std::exchange(finish_, std::nullopt), *response.mutable_finish());
  return true;
}

namespace {

// Every text is preceded by its length, so that different requests never give the same string.
std::string FactsOf(const ClientRequest& request) {
  std::string facts;
  for (const std::string* text : {&request.tenant, &request.request_id, &request.resume_token})
    absl::StrAppend(&facts, text->size(), ":", *text);
  std::string prompt;
  prompt.reserve(4 * request.prompt.size());
  for (const uint32_t id : request.prompt) {
    for (int shift = 0; shift < 32; shift += 8) prompt.push_back(static_cast<char>(id >> shift));
  }
  const Sha256Digest digest = Sha256(prompt);
  facts.append(digest.begin(), digest.end());
  absl::StrAppend(&facts, request.has_prompt_ids() ? " ids " : " length ", request.prompt_tokens, " ",
                  request.max_new_tokens, " ", request.priority);
  return facts;
}

}  // namespace

ResumeTickets::Issue ResumeTickets::Prepare(const ClientRequest& request, absl::Time deadline,
                                            absl::Time now) const {
  if (!keys_ || !request.resumable || !request.has_prompt()) return nullptr;
  if (request.resume_from.has_value() && !request.resume_proven) return nullptr;
  return [keys = keys_, facts = FactsOf(request), expires = std::min(deadline, now + kLongest) + beyond_](
             absl::string_view model) { return keys->Issue(facts, expires, model); };
}

std::optional<std::string> ResumeTickets::ModelOf(absl::string_view ticket, const ClientRequest& request,
                                                  absl::Time now) const {
  // Most bare resumes find their request; those that do not cannot start it again, so they need no ticket.
  if (!keys_ || ticket.empty() || IsBareResume(request)) return std::nullopt;
  return keys_->Claim(ticket, FactsOf(request), now);
}

namespace {

// Errors of a prompt that a ClientRequest cannot distinguish from a missing one.
absl::Status CheckPromptForm(const v1::GenerateRequest& request, const RequestLimits& limits) {
  const std::string range = absl::StrCat("within 1..", limits.max_prompt_tokens);
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids_size() < 1) return OutOfRange("the number of token_ids", 0, range);
      break;
    case v1::GenerateRequest::kPromptLength:
      if (request.prompt_length() < 1) return OutOfRange("prompt_length", 0, range);
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      if (request.has_resume_from_index()) break;
      return absl::InvalidArgumentError("prompt is missing; set token_ids or prompt_length");
  }
  return absl::OkStatus();
}

// Checks that a duration is above zero and at most the given number of hours; unset is valid.
absl::Status CheckWireDuration(absl::string_view field, bool set, const google::protobuf::Duration& duration,
                               int64_t hours) {
  if (!set) return absl::OkStatus();
  const bool proper = duration.seconds() >= 0 && duration.seconds() <= hours * 3600 &&
                      duration.nanos() >= 0 && duration.nanos() < 1'000'000'000;
  const bool above = duration.seconds() > 0 || duration.nanos() > 0;
  if (proper && above && DurationOf(duration) <= absl::Hours(hours)) return absl::OkStatus();
  return OutOfRange(field, absl::StrCat(duration.seconds(), " s and ", duration.nanos(), " ns"),
                    absl::StrCat("above 0 and at most ", hours, " h"));
}

absl::Status CheckDurations(const v1::GenerateRequest& request) {
  absl::Status status =
      CheckWireDuration("ttft_objective", request.has_ttft_objective(), request.ttft_objective(), 1);
  if (!status.ok()) return status;
  return CheckWireDuration("parent_timeout", request.has_parent_timeout(), request.parent_timeout(), 24);
}

Sampling ToSampling(const v1::SamplingParams& from) {
  Sampling sampling;
  if (from.has_temperature()) sampling.temperature = from.temperature();
  if (from.has_top_p()) sampling.top_p = from.top_p();
  if (from.has_top_k()) sampling.top_k = from.top_k();
  if (from.has_seed()) sampling.seed = from.seed();
  if (from.has_logprobs()) sampling.logprobs = from.logprobs();
  return sampling;
}

// REQUIRES: the checks above passed.
ClientRequest Convert(const v1::GenerateRequest& from) {
  ClientRequest request;
  if (from.has_token_ids()) {
    request.prompt.assign(from.token_ids().ids().begin(), from.token_ids().ids().end());
    request.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  } else {
    request.prompt_tokens = from.prompt_length();
  }
  request.max_new_tokens = from.max_new_tokens();
  request.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
  request.ignore_eos = from.ignore_eos();
  request.sampling = ToSampling(from.sampling());
  request.priority = from.priority();
  if (from.has_predicted_output_tokens()) request.predicted_output_tokens = from.predicted_output_tokens();
  if (from.has_ttft_objective()) request.ttft_objective = DurationOf(from.ttft_objective());
  request.resumable = from.resumable();
  request.resume_token = from.resume_token();
  if (from.has_resume_from_index()) request.resume_from = from.resume_from_index();
  request.received.assign(from.received_token_ids().begin(), from.received_token_ids().end());
  request.parent_id = from.parent_id();
  if (from.has_stage()) request.stage = from.stage();
  if (from.has_remaining_tokens()) request.remaining_tokens = from.remaining_tokens();
  if (from.has_parent_timeout()) request.parent_timeout = DurationOf(from.parent_timeout());
  return request;
}

ClientRequest BareResume(ClientRequest request) {
  ClientRequest bare;
  bare.request_id = std::move(request.request_id);
  bare.tenant = std::move(request.tenant);
  bare.resumable = request.resumable;
  bare.resume_token = std::move(request.resume_token);
  bare.resume_from = request.resume_from;
  return bare;
}

}  // namespace

absl::StatusOr<ClientRequest> ToClientRequest(const v1::GenerateRequest& request, std::string request_id,
                                              std::string tenant, const RequestLimits& limits) {
  if (absl::Status status = CheckDurations(request); !status.ok()) return status;
  if (absl::Status status = CheckPromptForm(request, limits); !status.ok()) return status;
  ClientRequest converted = Convert(request);
  converted.request_id = std::move(request_id);
  converted.tenant = std::move(tenant);
  if (absl::Status status = CheckRequest(converted, limits); !status.ok()) return status;
  if (IsBareResume(converted)) return BareResume(std::move(converted));
  converted.largest_id = std::max(LargestOf(converted.prompt), LargestOf(converted.received));
  if (limits.name_prefixes) converted.prefix = core::NamePrefixBlocks(converted.prompt);
  return converted;
}

}  // namespace bfio::router
