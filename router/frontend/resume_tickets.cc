#include "router/frontend/resume_tickets.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/auth/bearer_tokens.h"
#include "router/requests/check_request.h"

namespace bfio::router {
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

}  // namespace bfio::router
