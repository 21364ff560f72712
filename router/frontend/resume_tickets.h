// resume_ticket: a client's proof, after a restart of the router, that its request was accepted before.
// Requests that a restart interrupted are admitted ahead of their tenant's limits and of the pool
// (router/requests); no other request is. The first message of a resumable stream carries a ticket. It signs
// all that limits depend on: tenant, request_id, resume_token, prompt, max_new_tokens and priority. It also
// names the model of the tokens, since another model would continue differently. It is valid for the call's
// time, at most kLongest, plus --client_timeout. The keys are in --resume_key_file, which all routers that
// may succeed each other share; without keys there are no tickets. Pure; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/auth/ticket_keys.h"
#include "router/requests/request.h"

namespace bfio::router {

class ResumeTickets {
 public:
  static constexpr absl::Duration kLongest = absl::Hours(1);

  // Without keys.
  ResumeTickets() = default;
  // `beyond`: how long a ticket outlives its call.
  ResumeTickets(TicketKeys keys, absl::Duration beyond)
      : keys_(std::make_shared<const TicketKeys>(std::move(keys))), beyond_(beyond) {}

  // Null: none.
  const std::shared_ptr<const TicketKeys>& keys() const { return keys_; }

  // Makes the ticket once the model of the tokens is known: `model` is its digest, or empty.
  using Issue = std::function<std::string(absl::string_view model)>;

  // For the stream of this request, whose call ends at `deadline`; null: the stream gets no ticket. Times are
  // by the wall clock. A resume gets a ticket only if it is proven: otherwise it may continue a live request
  // whose prompt differs from the one sent with the resume.
  Issue Prepare(const ClientRequest& request, absl::Time deadline, absl::Time now) const;
  // If this ticket was issued for this very request: the digest of the model that generated its tokens; empty
  // digest: unknown.
  std::optional<std::string> ModelOf(absl::string_view ticket, const ClientRequest& request,
                                     absl::Time now) const;

 private:
  std::shared_ptr<const TicketKeys> keys_;
  absl::Duration beyond_;
};

}  // namespace bfio::router
