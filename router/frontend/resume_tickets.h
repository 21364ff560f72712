// resume_ticket: a client's proof, after the router has been restarted, that its request was accepted before.
//
// Purpose: requests that a restart has interrupted go ahead of their tenant's limits and of the pool
// (router/requests); nobody else may. The first message of a resumable stream carries a ticket over all that
// limits count: tenant, request_id, resume_token, prompt, max_new_tokens and priority. It is good for the
// time the call has, kLongest at most, and --resume_timeout beyond. Keys come from --resume_key_file, which
// every router that may follow has too; without keys there are no tickets. Pure; any thread.
#ifndef BFIO_ROUTER_FRONTEND_RESUME_TICKETS_H_
#define BFIO_ROUTER_FRONTEND_RESUME_TICKETS_H_

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
  ResumeTickets(TicketKeys keys, absl::Duration beyond) : keys_(std::move(keys)), beyond_(beyond) {}

  // For the stream of this request, whose call ends at `deadline`; empty: it gets none. Times are by the wall
  // clock. A request that comes as a resume gets one only if it is proven: of any other the router may know
  // the request_id and run what was sent with that, and not what is sent here.
  std::string Issue(const ClientRequest& request, absl::Time deadline, absl::Time now) const;
  // Whether an earlier stream of this very request has got this ticket.
  bool Proves(absl::string_view ticket, const ClientRequest& request, absl::Time now) const;

 private:
  std::optional<TicketKeys> keys_;
  absl::Duration beyond_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_FRONTEND_RESUME_TICKETS_H_
