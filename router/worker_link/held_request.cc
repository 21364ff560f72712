#include "router/worker_link/held_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/wire_time.h"
#include "router/requests/check_request.h"

namespace bfio::router {
namespace {

// Inverse of OriginOf.
ClientRequest FromOrigin(const v1::GenerateRequest& origin) {
  ClientRequest request;
  request.request_id = origin.request_id();
  request.max_new_tokens = origin.max_new_tokens();
  request.stop_token_ids.assign(origin.stop_token_ids().begin(), origin.stop_token_ids().end());
  request.ignore_eos = origin.ignore_eos();
  const v1::SamplingParams& sampling = origin.sampling();
  if (sampling.has_temperature()) request.sampling.temperature = sampling.temperature();
  if (sampling.has_top_p()) request.sampling.top_p = sampling.top_p();
  if (sampling.has_top_k()) request.sampling.top_k = sampling.top_k();
  if (sampling.has_seed()) request.sampling.seed = sampling.seed();
  if (sampling.has_logprobs()) request.sampling.logprobs = sampling.logprobs();
  request.tenant = origin.tenant();
  request.priority = origin.priority();
  if (origin.has_predicted_output_tokens()) {
    request.predicted_output_tokens = origin.predicted_output_tokens();
  }
  if (origin.has_ttft_objective()) request.ttft_objective = DurationOf(origin.ttft_objective());
  request.resumable = origin.resumable();
  request.resume_token = origin.resume_token();
  return request;
}

// The facts of a signature; the label tells it from a resume_ticket, which the same keys sign.
std::string FactsOf(absl::string_view worker_id, const v1::Assignment& assignment,
                    const std::string& origin) {
  return absl::StrCat("held ", worker_id.size(), ":", worker_id, " ", assignment.handle(), " ",
                      assignment.prompt_length(), " ", assignment.first_index(), " ", origin);
}

// Takes the log-probabilities of the last tokens: of this whole placement, and of earlier placements as far
// as the assignment had them.
absl::Status TakeLogprobs(const v1::HeldRequest& held, HeldRequest& state) {
  if (!state.request.sampling.logprobs) return absl::OkStatus();
  const v1::Logprobs& earlier = held.assignment().earlier_logprobs();
  absl::Status status = Append(earlier, state.logprobs);
  if (status.ok()) status = Append(held.logprobs(), state.logprobs);
  if (!status.ok()) return status;
  const LogprobsView all = state.logprobs.view();
  if (std::cmp_greater(earlier.token_logprobs_size(), state.first_index) ||
      held.logprobs().token_logprobs_size() != held.token_ids_size() ||
      all.top.size() != all.tokens.size() * *state.request.sampling.logprobs) {
    return absl::InvalidArgumentError("its log-probabilities do not match its tokens");
  }
  return absl::OkStatus();
}

}  // namespace

void ToWire(const Sampling& sampling, uint64_t seed, v1::SamplingParams& out) {
  if (sampling.temperature) out.set_temperature(*sampling.temperature);
  if (sampling.top_p) out.set_top_p(*sampling.top_p);
  if (sampling.top_k) out.set_top_k(*sampling.top_k);
  out.set_seed(seed);
  if (sampling.logprobs) out.set_logprobs(*sampling.logprobs);
}

void ToWire(const LogprobsView& from, v1::Logprobs& out) {
  out.mutable_token_logprobs()->Add(from.tokens.begin(), from.tokens.end());
  for (const TopToken& top : from.top) {
    out.add_top_token_ids(top.id);
    out.add_top_logprobs(top.logprob);
  }
}

absl::Status Append(const v1::Logprobs& from, Logprobs& to) {
  const int tokens = from.token_logprobs_size(), top = from.top_logprobs_size();
  if (from.top_token_ids_size() != top || (tokens == 0 ? top != 0 : top % tokens != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("log-probabilities of ", tokens, " tokens have ",
                                                   from.top_token_ids_size(), " ids and ", top,
                                                   " values of alternatives"));
  }
  to.tokens.insert(to.tokens.end(), from.token_logprobs().begin(), from.token_logprobs().end());
  for (int i = 0; i < top; ++i) to.top.push_back({from.top_token_ids(i), from.top_logprobs(i)});
  return absl::OkStatus();
}

std::string OriginOf(const ClientRequest& request, uint64_t seed) {
  v1::GenerateRequest origin;
  origin.set_request_id(request.request_id);
  origin.set_max_new_tokens(request.max_new_tokens);
  origin.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  origin.set_ignore_eos(request.ignore_eos);
  ToWire(request.sampling, seed, *origin.mutable_sampling());
  origin.set_tenant(request.tenant);
  origin.set_priority(request.priority);
  if (request.predicted_output_tokens) {
    origin.set_predicted_output_tokens(*request.predicted_output_tokens);
  }
  if (request.ttft_objective) SetDuration(*request.ttft_objective, origin.mutable_ttft_objective());
  origin.set_resumable(true);
  origin.set_resume_token(request.resume_token);
  return origin.SerializeAsString();
}

void SignOrigin(const TicketKeys& keys, absl::string_view worker_id, absl::Time now, v1::Assignment& to) {
  if (to.origin().empty()) return;
  v1::GenerateRequest ticket;
  ticket.set_resume_ticket(keys.Issue(FactsOf(worker_id, to, to.origin()), now + kOriginLife));
  // Messages that follow one another are parsed as one.
  to.mutable_origin()->append(ticket.SerializeAsString());
}

bool OriginIsProven(const TicketKeys& keys, absl::string_view worker_id, absl::Time now,
                    const v1::Assignment& from) {
  v1::GenerateRequest origin;
  if (!origin.ParseFromString(from.origin())) return false;
  const std::string ticket = origin.resume_ticket();
  origin.clear_resume_ticket();
  return keys.Claim(ticket, FactsOf(worker_id, from, origin.SerializeAsString()), now).has_value();
}

absl::StatusOr<HeldRequest> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits) {
  const auto wrong = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const v1::Assignment& from = held.assignment();
  v1::GenerateRequest origin;
  if (!origin.ParseFromString(from.origin())) return wrong("its origin cannot be parsed");
  HeldRequest state;
  state.request = FromOrigin(origin);
  state.id = from.handle();
  state.first_index = from.first_index();
  const auto ids = static_cast<uint32_t>(from.prompt_token_ids_size());
  if (from.first_index() >= from.prompt_length() || (ids != 0 && ids != from.prompt_length())) {
    return wrong("first_index ", from.first_index(), ", prompt_length ", from.prompt_length(), " and ", ids,
                 " prompt ids are inconsistent");
  }
  state.request.prompt_tokens = from.prompt_length() - from.first_index();
  if (ids != 0) {
    const auto history = from.prompt_token_ids().begin() + state.request.prompt_tokens;
    state.request.prompt.assign(from.prompt_token_ids().begin(), history);
    state.tokens.assign(history, from.prompt_token_ids().end());
  } else {
    if (static_cast<uint32_t>(from.earlier_token_ids_size()) != from.first_index()) {
      return wrong(from.earlier_token_ids_size(), " earlier_token_ids do not match first_index ",
                   from.first_index());
    }
    state.tokens.assign(from.earlier_token_ids().begin(), from.earlier_token_ids().end());
  }
  state.tokens.insert(state.tokens.end(), held.token_ids().begin(), held.token_ids().end());
  if (absl::Status status = CheckRequest(state.request, limits); !status.ok()) return status;
  if (absl::Status status = TakeLogprobs(held, state); !status.ok()) return status;
  if (!state.request.resumable) return wrong("it is not resumable");
  if (state.tokens.size() > state.request.max_new_tokens) {
    return wrong(state.tokens.size(), " tokens, more than its max_new_tokens, ",
                 state.request.max_new_tokens);
  }
  if (held.ended() == v1::FINISH_REASON_STOP) {
    state.ended = FinishReason::kStop;
  } else if (held.ended() != v1::FINISH_REASON_UNSPECIFIED ||
             state.tokens.size() == state.request.max_new_tokens) {
    state.ended = FinishReason::kLength;
  }
  return state;
}

}  // namespace bfio::router
