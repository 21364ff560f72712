#include "router/worker_link/held_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "router/worker_link/convert.h"

namespace bfio::router {
namespace {

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

uint64_t SeedOfName(absl::string_view request_id) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : request_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return Mix64(hash);
}

std::string OriginOf(const v1::GenerateRequest& request) {
  v1::GenerateRequest origin;
  origin.set_request_id(request.request_id());
  origin.set_max_new_tokens(request.max_new_tokens());
  *origin.mutable_stop_token_ids() = request.stop_token_ids();
  origin.set_ignore_eos(request.ignore_eos());
  *origin.mutable_sampling() = request.sampling();
  origin.set_tenant(request.tenant());
  origin.set_priority(request.priority());
  if (request.has_predicted_output_tokens()) {
    origin.set_predicted_output_tokens(request.predicted_output_tokens());
  }
  if (request.has_ttft_objective()) *origin.mutable_ttft_objective() = request.ttft_objective();
  if (request.has_tpot_objective()) *origin.mutable_tpot_objective() = request.tpot_objective();
  origin.set_resumable(true);
  origin.set_resume_token(request.resume_token());
  return origin.SerializeAsString();
}

absl::StatusOr<HeldState> FromHeld(const v1::HeldRequest& held, const RequestLimits& limits) {
  const auto wrong = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const v1::Assignment& from = held.assignment();
  HeldState state;
  if (!state.request.ParseFromString(from.origin())) return wrong("its origin cannot be read");
  state.handle = from.handle();
  state.first_index = from.first_index();
  const auto ids = static_cast<uint32_t>(from.prompt_token_ids_size());
  if (from.first_index() >= from.prompt_length() || (ids != 0 && ids != from.prompt_length())) {
    return wrong("first_index ", from.first_index(), ", prompt_length ", from.prompt_length(), " and ", ids,
                 " prompt ids do not go together");
  }
  if (state.handle == 0 || state.handle > uint64_t{1} << 62) return wrong("no router gives out its handle");
  const uint32_t prompt = from.prompt_length() - from.first_index();
  if (ids != 0) {
    const auto begin = from.prompt_token_ids().begin();
    state.request.mutable_token_ids()->mutable_ids()->Add(begin, begin + prompt);
    state.tokens.assign(begin + prompt, from.prompt_token_ids().end());
  } else {
    state.request.set_prompt_length(prompt);
    if (static_cast<uint32_t>(from.earlier_token_ids_size()) != from.first_index()) {
      return wrong(from.earlier_token_ids_size(), " earlier tokens before index ", from.first_index());
    }
    state.tokens.assign(from.earlier_token_ids().begin(), from.earlier_token_ids().end());
  }
  state.tokens.insert(state.tokens.end(), held.token_ids().begin(), held.token_ids().end());
  if (absl::Status status = CheckGenerate(state.request, limits); !status.ok()) return status;
  if (!state.request.resumable()) return wrong("it is not resumable");
  if (state.tokens.size() > state.request.max_new_tokens()) {
    return wrong(state.tokens.size(), " tokens of at most ", state.request.max_new_tokens());
  }
  if (held.ended() == v1::FINISH_REASON_STOP) {
    state.ended = v1::FINISH_REASON_STOP;
  } else if (held.ended() != v1::FINISH_REASON_UNSPECIFIED ||
             state.tokens.size() == state.request.max_new_tokens()) {
    state.ended = v1::FINISH_REASON_LENGTH;
  }
  return state;
}

bool MayResume(const v1::GenerateRequest& request, const v1::GenerateRequest& resume) {
  return SameSecret(request.tenant(), resume.tenant()) &&
         SameSecret(request.resume_token(), resume.resume_token());
}

bool MayAbort(const v1::GenerateRequest& request, const v1::AbortRequest& abort,
              const std::optional<std::string>& tenant) {
  return (!tenant.has_value() || SameSecret(request.tenant(), *tenant)) &&
         SameSecret(request.resume_token(), abort.resume_token());
}

}  // namespace bfio::router
